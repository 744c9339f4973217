"""Where the documents of a prompt lie, counted in tokens."""

from __future__ import annotations

from dataclasses import dataclass

from rag_middle.errors import PromptError


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """Token spans of one prompt: prefix, documents, suffix.

    Attributes:
        length: tokens of the prompt (``l``), padding not counted.
        documents: half-open spans ``(start, end)`` in prompt order. They are contiguous: a
            document ends where the next one starts, separators belonging to the document before
            them. A document may be empty.

    Raises:
        PromptError: spans that overlap, leave gaps or reach outside the prompt.
    """

    length: int
    documents: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.length < 1:
            raise PromptError(f"A prompt needs at least one token, got length={self.length}.")
        cursor = self.documents[0][0] if self.documents else 0
        for index, (start, end) in enumerate(self.documents):
            if start != cursor or end < start:
                raise PromptError(
                    f"Document {index} spans tokens [{start}, {end}) but should start at {cursor}: "
                    "spans must be contiguous and in order."
                )
            cursor = end
        if cursor > self.length or (self.documents and self.documents[0][0] < 0):
            raise PromptError(f"Documents end at token {cursor}, the prompt at {self.length}.")

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the first document (``P``); the whole prompt where there are none."""
        return self.documents[0][0] if self.documents else self.length

    @property
    def document_tokens(self) -> int:
        """Tokens of all documents together (``T``)."""
        return self.documents[-1][1] - self.documents[0][0] if self.documents else 0

    @property
    def suffix_start(self) -> int:
        """Index of the first token after the documents."""
        return self.prefix_tokens + self.document_tokens

    @property
    def document_lengths(self) -> tuple[int, ...]:
        """Tokens of each document, in prompt order."""
        return tuple(end - start for start, end in self.documents)
