"""Requests to the model, and its answers as responses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import CompletionResponse
from llama_index.llms.rag_middle.errors import refusals
from llama_index.llms.rag_middle.requests import Request
from llama_index.llms.rag_middle.responses import completion

from rag_middle.generation import GenerationStream

if TYPE_CHECKING:
    from llama_index.llms.rag_middle.base import RagMiddleLLM

__all__ = ["complete", "stream"]


def complete(llm: RagMiddleLLM, request: Request) -> CompletionResponse:
    """The whole answer."""
    generation = llm.rag_middle_model.generate(request.prompt, **request.options)
    return completion(generation.text, generation, llm.model_name)


def stream(
    llm: RagMiddleLLM,
    request: Request,
    shape: Callable[[CompletionResponse], Any] = lambda response: response,
) -> Generator[Any, None, None]:
    """Responses as they grow, the last one with ``raw``; each in the `shape` of the call."""
    # Outside of the generator below: refusals come at the call, before anything is generated.
    pieces = llm.rag_middle_model.stream(request.prompt, **request.options)
    return _responses(pieces, llm.model_name, shape)


def _responses(
    pieces: GenerationStream, model_name: str, shape: Callable[[CompletionResponse], Any]
) -> Generator[Any, None, None]:
    text = ""
    with pieces, refusals():
        for piece in pieces:
            if piece:
                text += piece
                yield shape(completion(text, None, model_name, piece))
        yield shape(completion(text, pieces.result, model_name, ""))
