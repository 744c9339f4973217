"""Records cut into chunks that say where they come from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rag_middle.errors import RetrievalConfigError
from rag_middle.extras import require
from rag_middle.retrieval.records import Chunk, Record, content_id
from rag_middle.wording import Argument

__all__ = ["Splitter"]


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """Cuts records at paragraphs, else lines, else words, with langchain-text-splitters.

    Attributes:
        chunk_size: the largest chunk, in characters, or in what `length` counts.
        overlap: the largest part that neighbouring chunks share, in the same unit.
        length: counts a text, for example the tokens of an embedder
            (:meth:`SentenceTransformerEmbedder.count_tokens`); by default characters.
        unit: what `length` counts; part of an index's settings, so name it when `length` is given.

    Example:
        >>> Splitter(chunk_size=200, overlap=20, length=embedder.count_tokens, unit="tokens")
    """

    chunk_size: int = 1000
    overlap: int = 100
    length: Callable[[str], int] | None = None
    unit: str = "characters"

    def __post_init__(self) -> None:
        if self.chunk_size <= 0:
            raise RetrievalConfigError(
                Argument("chunk_size"), f" must be positive, got {self.chunk_size}."
            )
        if not 0 <= self.overlap < self.chunk_size:
            raise RetrievalConfigError(
                Argument("overlap"),
                " must be at least 0 and below ",
                Argument("chunk_size"),
                f" ({self.chunk_size}), got {self.overlap}.",
            )
        if (self.length is None) != (self.unit == "characters"):
            raise RetrievalConfigError(
                "length and unit belong together: name what length counts, for example "
                f"unit='tokens'; got unit={self.unit!r} and length={self.length}."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What an index must have been made with to be used again."""
        return {"chunk_size": self.chunk_size, "overlap": self.overlap, "unit": self.unit}

    def split(self, records: Iterable[Record]) -> list[Chunk]:
        """The chunks of all records, in order.

        Raises:
            MissingExtraError: langchain-text-splitters is not installed.
        """
        library = require(
            "langchain_text_splitters", package="langchain-text-splitters", what="Splitting texts"
        )
        splitter = library.RecursiveCharacterTextSplitter(
            chunk_size=self.chunk_size - self._max_small,  # leaves room for a small piece beside it
            chunk_overlap=self.overlap,
            length_function=_remembering(self.length) if self.length else len,
        )
        return [
            Chunk(
                id=content_id(record.source, record.content_hash, start, end),
                text=record.text[start:end],
                source=record.source,
                title=record.title,
                start=record.start + start,
                end=record.start + end,
                metadata={**record.metadata, **record.location(start, end)},
            )
            for record in records
            for start, end in self._spans(splitter, record.text)
        ]

    @property
    def _max_small(self) -> int:
        """Pieces up to this long say too little alone, such as a heading before a table."""
        return (self.chunk_size - self.overlap) // 10

    def _spans(self, splitter: Any, text: str) -> Iterator[tuple[int, int]]:
        """Offsets of the chunks: the pieces, small ones together with a neighbour."""
        measure = self.length or len
        chunk: tuple[int, int] | None = None
        for start, end in self._pieces(splitter, text):
            if chunk is None:
                chunk = start, end
                continue
            shorter = min(measure(text[slice(*chunk)]), measure(text[start:end]))
            if shorter <= self._max_small and measure(text[chunk[0] : end]) <= self.chunk_size:
                chunk = chunk[0], end
            else:
                yield chunk
                chunk = start, end
        if chunk is not None:
            yield chunk

    def _pieces(self, splitter: Any, text: str) -> Iterator[tuple[int, int]]:
        """Offsets of the pieces. The library's own are wrong when lengths are not in characters."""
        start, end = -1, 0
        for piece in splitter.split_text(text):
            at = text.index(piece, start + 1)
            if text.find(piece, at + 1) >= 0:
                # The text repeats itself, and this may be too early. Neighbours share no more than
                # `overlap`.
                later = text.find(piece, self._overlap_start(text, start, end))
                at = max(at, later)
            start, end = at, at + len(piece)
            yield start, end

    def _overlap_start(self, text: str, start: int, end: int) -> int:
        """Start of the part of ``text[start:end]`` that the next piece may share."""
        if self.length is None:
            return max(start + 1, end - self.overlap)
        lengths = range(start + 1, end)
        measure = self.length
        # Ascending keys: the longer the part, the earlier it begins.
        at = bisect_left(lengths, -self.overlap, key=lambda begin: -measure(text[begin:end]))
        return start + 1 + at


_SHORT = 16  # characters


def _remembering(length: Callable[[str], int]) -> Callable[[str], int]:
    """The same, with the lengths of short texts remembered.

    Text without spaces is cut at every character, and each is measured twice: with a tokenizer,
    minutes for a file of some hundred kilobytes.
    """
    remembered = lru_cache(maxsize=10_000)(length)
    return lambda text: remembered(text) if len(text) <= _SHORT else length(text)
