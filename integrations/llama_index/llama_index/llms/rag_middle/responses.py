"""From what rag-middle generated to LlamaIndex's responses."""

from __future__ import annotations

import re
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
)

from rag_middle import Generation, escape

__all__ = ["EscapedText", "as_chat", "completion"]

# What may be the beginning of a marker or of an escaped one, at the end of a text.
_BEGUN = re.compile(r"\[(?:\[~*(?:/?(?:r(?:m(?::(?:d(?:o(?:c\]?)?)?)?)?)?)?)?)?$")


class EscapedText:
    """A text that is still being written, with look-alikes of document markers escaped.

    LlamaIndex puts answers into later prompts (refine, tree_summarize, chat histories, agents). A
    document could have the model write markers there and so forge documents. Escaped markers are
    read as what the model wrote when they come back.
    """

    def __init__(self) -> None:
        self.text = ""
        self._held = ""

    def push(self, piece: str) -> str:
        """What can be shown of the text with `piece` added."""
        pending = self._held + piece
        begun = _BEGUN.search(pending)
        end = begun.start() if begun else len(pending)
        self._held = pending[end:]
        return self._shown(pending[:end])

    def finish(self) -> str:
        """What was held back, as it may have been the beginning of a marker."""
        held, self._held = self._held, ""
        return self._shown(held)

    def _shown(self, text: str) -> str:
        shown = escape(text)
        self.text += shown
        return shown


def completion(
    text: str, generation: Generation | None, model_name: str, delta: str | None = None
) -> CompletionResponse:
    """A response.

    Args:
        text: escaped.
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
