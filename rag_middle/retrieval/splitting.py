"""Records cut into chunks that say where they come from."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, groupby, pairwise
from typing import Any

from rag_middle.errors import RetrievalConfigError
from rag_middle.retrieval.records import Chunk, Record, span_ids
from rag_middle.wording import Argument

__all__ = ["Splitter"]

_Part = tuple[int, int, int]  # its start, end and length


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """Cuts records at paragraphs, else lines, else words, else characters; no chunk is in another.

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
        """The chunks of all records, in order."""
        return [
            Chunk(
                # The title is embedded too, whatever it was made from.
                id=span_id(start, end),
                text=record.text[start:end],
                source=record.source,
                title=record.title,
                start=record.start + start,
                end=record.start + end,
                metadata={**record.metadata, **record.location(start, end)},
            )
            for record in records
            for span_id in [span_ids(record.source, record.title, record.text)]
            for start, end in self._spans(record.text)
        ]

    @cached_property
    def _measure(self) -> Callable[[str], int]:
        return _remembering(self.length) if self.length else len

    @property
    def _piece_size(self) -> int:
        return self.chunk_size - self._max_small  # leaves room for a small piece beside it

    @property
    def _max_small(self) -> int:
        """Pieces up to this long say too little alone, such as a heading before a table."""
        return (self.chunk_size - self.overlap) // 10

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Offsets of the chunks: the pieces, small ones together with a neighbour.

        Overlapping pieces may hold each other; those within another are left out.
        """
        measure = self._measure
        chunk: tuple[int, int] | None = None
        for start, end in self._pieces(text):
            if chunk is None:
                chunk = start, end
                continue
            if end <= chunk[1]:
                continue
            if start <= chunk[0]:
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

    def _pieces(self, text: str) -> Iterator[tuple[int, int]]:
        """Offsets of the pieces, which leave nothing out but spaces at their ends.

        They are those of RecursiveCharacterTextSplitter of langchain-text-splitters, which tells no
        offsets that can be relied upon: where a text repeats itself, a piece may stand anywhere.
        """
        for start, end in self._cut(text, 0, len(text), _SEPARATORS):
            piece = text[start:end]
            if kept := piece.strip():
                start += len(piece) - len(piece.lstrip())
                yield start, start + len(kept)

    def _cut(
        self, text: str, start: int, end: int, separators: Sequence[re.Pattern[str]]
    ) -> Iterator[tuple[int, int]]:
        """Parts of ``text[start:end]`` that are small enough, cut where the first separator is."""
        first = next(at for at, it in enumerate(separators) if it.search(text, start, end))
        separator, finer = separators[first], separators[first + 1 :]
        # A separator begins the part that follows it.
        cuts = chain([start], (it.start() for it in separator.finditer(text, start, end)), [end])
        # One by one: where there is no separator they are characters, each of which as a part
        # would take a hundred bytes.
        parts = (
            (begin, stop, self._measure(text[begin:stop]))
            for begin, stop in pairwise(cuts)
            if begin < stop
        )
        for is_small, group in groupby(parts, key=lambda part: part[2] < self._piece_size):
            if is_small:
                yield from self._joined(text, group)
                continue
            for begin, stop, _ in group:
                if finer:
                    yield from self._cut(text, begin, stop, finer)
                else:
                    yield begin, stop

    def _joined(self, text: str, parts: Iterable[_Part]) -> Iterator[tuple[int, int]]:
        """Neighbouring parts, together as long as they are small enough."""
        joined: deque[_Part] = deque()
        total = 0
        for part in parts:
            *_, length = part
            if joined and total + length > self._piece_size:
                spans = [*self._halved(text, [*joined])]
                yield from spans
                if len(spans) > 1:  # what they share could hold one of them
                    joined.clear()
                    total = 0
                while total > self.overlap or (total and total + length > self._piece_size):
                    total -= joined.popleft()[2]
            joined.append(part)
            total += length
        if joined:
            yield from self._halved(text, [*joined])

    def _halved(self, text: str, parts: Sequence[_Part]) -> Iterator[tuple[int, int]]:
        """The span of the parts; those of their halves where they are longer than their sum.

        A token may be counted for 8 characters, but for none of them alone: zero-width ones.
        """
        start, end = parts[0][0], parts[-1][1]
        if len(parts) == 1 or self._measure(text[start:end]) <= self.chunk_size:
            yield start, end
            return
        middle = len(parts) // 2
        yield from self._halved(text, parts[:middle])
        yield from self._halved(text, parts[middle:])


#: Paragraphs, lines, words, characters.
_SEPARATORS = tuple(map(re.compile, ("\n\n", "\n", " ", "")))
_SHORT = 16  # characters


def _remembering(length: Callable[[str], int]) -> Callable[[str], int]:
    """The same, with the lengths of short texts remembered.

    Text without spaces is cut at every character, and each is measured: with a tokenizer,
    minutes for a file of some hundred kilobytes.
    """
    remembered = lru_cache(maxsize=10_000)(length)
    return lambda text: remembered(text) if len(text) <= _SHORT else length(text)
