"""From what rag-middle generated to LlamaIndex's responses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    MessageRole,
    TextBlock,
)
from llama_index.llms.rag_middle.errors import refusals
from llama_index.llms.rag_middle.tools import call_blocks

from rag_middle import Generation
from rag_middle.conventions.citations import llama_index_citations
from rag_middle.conventions.documents import sources_of
from rag_middle.generation import GenerationStream

__all__ = ["as_chat", "completion", "growing"]


def completion(
    text: str,
    generation: Generation | None,
    model_name: str,
    delta: str | None = None,
    prompt: object = None,
) -> CompletionResponse:
    """A response.

    Args:
        text: all of it so far.
        generation: where it comes from; ``None`` while it is being written.
        model_name: for ``raw``.
        delta: what is new in it.
        prompt: what was generated for; its documents may be cited.
    """
    raw = None if generation is None else _raw(generation, model_name, prompt)
    calls = {"tool_calls": blocks} if (blocks := call_blocks(generation)) else {}
    return CompletionResponse(text=text, delta=delta, raw=raw, additional_kwargs=calls)


def as_chat(response: CompletionResponse) -> ChatResponse:
    """The same as a message of the assistant, its citations in blocks behind the text."""
    blocks: list[Any] = [TextBlock(text=response.text)]
    if isinstance(response.raw, dict):
        blocks += map(CitationBlock.model_validate, response.raw["rag_middle"]["citations"])
    blocks += response.additional_kwargs.get("tool_calls", ())
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks),
        delta=response.delta,
        raw=response.raw,
    )


def _raw(generation: Generation, model_name: str, prompt: object) -> dict[str, Any]:
    """``usage`` and ``finish_reason`` where other LLMs have them; the rest in ``rag_middle``."""
    sources = sources_of(prompt, generation.dropped_documents)
    everything = generation.to_dict()
    everything["citations"] = llama_index_citations(generation.text, sources)
    usage = everything.pop("usage")
    del everything["text"], everything["token_ids"], everything["tool_calls"]
    return {
        "model": model_name,
        "finish_reason": everything.pop("finish_reason"),
        "usage": usage,
        "rag_middle": everything,
    }


def growing(
    pieces: GenerationStream,
    model_name: str,
    shape: Callable[[CompletionResponse], Any],
    prompt: object = None,
) -> Generator[Any, None, None]:
    """Responses as they grow, the last one with ``raw``; each in the `shape` of the call."""
    text = ""
    with pieces, refusals():
        for piece in pieces:
            if piece:
                text += piece
                yield shape(completion(text, None, model_name, piece))
        yield shape(completion(text, pieces.result, model_name, "", prompt))
