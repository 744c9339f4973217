"""From what rag-middle generated to LlamaIndex's responses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    CompletionResponse,
    LogProb,
    MessageRole,
    TextBlock,
)
from llama_index.llms.rag_middle.errors import refusals
from llama_index.llms.rag_middle.tools import call_blocks, call_fields

from rag_middle import Generation
from rag_middle.generation import GenerationStream
from rag_middle.integration import citations_in, openai_logprobs


def completion(
    text: str,
    generation: Generation | None,
    model_name: str,
    delta: str | None = None,
    prompt: object = None,
    token_text: Callable[[int], str] = str,
) -> CompletionResponse:
    """A response.

    Args:
        text: all of it so far.
        generation: where it comes from; ``None`` while it is being written.
        model_name: for ``raw``.
        delta: what is new in it.
        prompt: what was generated for; its documents may be cited.
        token_text: what a token adds to a text.
    """
    raw = None if generation is None else _raw(generation, model_name, prompt)
    calls = {"tool_calls": blocks} if (blocks := call_blocks(generation)) else {}
    return CompletionResponse(
        text=text,
        delta=delta,
        raw=raw,
        additional_kwargs=calls,
        logprobs=_logprobs(generation, token_text),
    )


def as_chat(response: CompletionResponse) -> ChatResponse:
    """The same as a message of the assistant, its citations in blocks behind the text."""
    blocks: list[Any] = [TextBlock(text=response.text)]
    if isinstance(response.raw, dict):
        blocks += map(CitationBlock.model_validate, response.raw["rag_middle"]["citations"])
    blocks += response.additional_kwargs.get("tool_calls", ())
    message = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)
    message.additional_kwargs.update(call_fields(message))  # where LlamaIndex looks in streams
    return ChatResponse(
        message=message,
        delta=response.delta,
        raw=response.raw,
        logprobs=response.logprobs,
    )


def _logprobs(
    generation: Generation | None, token_text: Callable[[int], str]
) -> list[list[LogProb]] | None:
    """For each token: itself, and the most probable others where they were asked for."""
    if generation is None or not generation.log_probabilities:
        return None
    tokens = generation.log_probabilities
    entries = openai_logprobs(tokens, token_text)["content"]
    logprobs = []
    for token, entry in zip(tokens, entries, strict=True):
        alternatives = zip(token.alternatives, entry["top_logprobs"], strict=True)
        others = [other for (token_id, _), other in alternatives if token_id != token.token_id]
        logprobs.append(
            [
                LogProb(token=e["token"], logprob=e["logprob"], bytes=e["bytes"] or [])
                for e in (entry, *others)
            ]
        )
    return logprobs


def _raw(generation: Generation, model_name: str, prompt: object) -> dict[str, Any]:
    """``usage`` and ``finish_reason`` where other LLMs have them; the rest in ``rag_middle``."""
    citations = citations_in(generation, prompt, "llama_index")
    return {
        "model": model_name,
        "finish_reason": generation.finish_reason,
        "usage": generation.to_dict()["usage"],
        "rag_middle": {**generation.report(), "citations": citations},
    }


def growing(
    pieces: GenerationStream,
    model_name: str,
    shape: Callable[[CompletionResponse], Any],
    prompt: object = None,
    token_text: Callable[[int], str] = str,
) -> Generator[Any, None, None]:
    """Responses as they grow, the last one with ``raw``; each in the `shape` of the call."""
    text = ""
    with pieces, refusals():
        for piece in pieces:
            if piece:
                text += piece
                yield shape(completion(text, None, model_name, piece))
        yield shape(completion(text, pieces.result, model_name, "", prompt, token_text))
