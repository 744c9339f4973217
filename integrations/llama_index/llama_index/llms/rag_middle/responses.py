"""From what rag-middle generated to LlamaIndex's responses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
)
from llama_index.llms.rag_middle.errors import refusals

from rag_middle import Generation
from rag_middle.generation import GenerationStream

__all__ = ["as_chat", "completion", "growing"]


def completion(
    text: str, generation: Generation | None, model_name: str, delta: str | None = None
) -> CompletionResponse:
    """A response.

    Args:
        text: all of it so far.
        generation: where it comes from; ``None`` while it is being written.
        model_name: for ``raw``.
        delta: what is new in it.
    """
    raw = None if generation is None else _raw(generation, model_name)
    return CompletionResponse(text=text, delta=delta, raw=raw)


def as_chat(response: CompletionResponse) -> ChatResponse:
    """The same as a message of the assistant."""
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=response.text),
        delta=response.delta,
        raw=response.raw,
    )


def _raw(generation: Generation, model_name: str) -> dict[str, Any]:
    """``usage`` and ``finish_reason`` where other LLMs have them; the rest in ``rag_middle``."""
    everything = generation.to_dict()
    usage = everything.pop("usage")
    del everything["text"], everything["token_ids"]
    return {
        "model": model_name,
        "finish_reason": everything.pop("finish_reason"),
        "usage": usage,
        "rag_middle": everything,
    }


def growing(
    pieces: GenerationStream, model_name: str, shape: Callable[[CompletionResponse], Any]
) -> Generator[Any, None, None]:
    """Responses as they grow, the last one with ``raw``; each in the `shape` of the call."""
    text = ""
    with pieces, refusals():
        for piece in pieces:
            if piece:
                text += piece
                yield shape(completion(text, None, model_name, piece))
        yield shape(completion(text, pieces.result, model_name, ""))
