"""Generated text that frameworks put into later prompts."""

from __future__ import annotations

import re

from rag_middle.documents import escape

__all__ = ["EscapedText"]

# What may be the beginning of a marker, or of an escaped one, at the end of a text.
_BEGUN = re.compile(r"\[(?:\[~*(?:/?(?:r(?:m(?::(?:d(?:o(?:c\]?)?)?)?)?)?)?)?)?$")


class EscapedText:
    """A text that is still being written, with look-alikes of document markers escaped.

    Frameworks put answers into later prompts: chat histories, agents, answers that are refined. A
    document could have a model write markers there, and so forge documents. Escaped markers are
    read as what the model wrote when they come back.

    All that `push` and `finish` return, put together, is ``escape(text)`` of the whole text.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        """What can be shown once `piece` has come: not the beginning of a marker."""
        pending = self._held + piece
        begun = _BEGUN.search(pending)
        end = begun.start() if begun else len(pending)
        self._held = pending[end:]
        return escape(pending[:end])

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return escape(held)
