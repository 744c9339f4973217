"""Records cut into chunks that say where they come from."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.retrieval.readers import Record


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a record, as it is indexed.

    Attributes:
        id: stable as long as the record's title and text, its source and the offsets in it stay.
        text: the part.
        source: as in :class:`Record`.
        title: the record's title.
        start: character offset of the part in the source, as in :class:`Record`.
        end: offset after its last character.
        metadata: the record's, and for texts ``first_line``, ``last_line`` and ``heading``.
    """

    id: str
    text: str
    source: str
    title: str | None = None
    start: int = 0
    end: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def render(self) -> str:
        """What is embedded, and what the model will read: the title on a line before the text."""
        return self.document().render()

    def document(self, score: float | None = None) -> Document:
        """The chunk as a document of a prompt; source, offsets and score join its metadata."""
        # Metadata of a caller's own comes first; that of files has no such names.
        metadata = {"source": self.source, "start": self.start, "end": self.end, **self.metadata}
        if score is not None:
            metadata["score"] = score
        return Document(self.text, title=self.title, id=self.id, metadata=metadata)


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
        if not 0 <= self.overlap < self.chunk_size:
            raise ConfigError(
                f"overlap must be at least 0 and below chunk_size ({self.chunk_size}), got "
                f"{self.overlap}. Make chunks larger."
            )
        if (self.length is None) != (self.unit == "characters"):
            raise ConfigError(
                "length and unit belong together: name what length counts, for example "
                f"unit='tokens'; got unit={self.unit!r} and length={self.length}."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What an index must have been made with to be used again."""
        return {"chunk_size": self.chunk_size, "overlap": self.overlap, "unit": self.unit}

    def split(self, records: Iterable[Record]) -> list[Chunk]:
        """The chunks of all records, in order."""
        chunks = []
        for record in records:
            of_record = content_id(record.source, record.title, record.text)
            line, counted = record.first_line, 0
            for start, end in self._spans(record.text):
                metadata = dict(record.metadata)
                if line is not None:
                    line += record.text.count("\n", counted, start)
                    counted = start
                    last = line + record.text.count("\n", start, end)
                    metadata |= {"first_line": line, "last_line": last}
                above = bisect_right(record.headings, start, key=lambda heading: heading[0])
                if above:
                    metadata["heading"] = record.headings[above - 1][1]
                chunks.append(
                    Chunk(
                        id=content_id(of_record, start, end),
                        text=record.text[start:end],
                        source=record.source,
                        title=record.title,
                        start=record.start + start,
                        end=record.start + end,
                        metadata=metadata,
                    )
                )
        return chunks

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Offsets of the chunks: neighbouring parts, as long as they are small enough together."""
        chunk: deque[tuple[int, int, int]] = deque()  # start, end and length of parts
        total = 0
        for start, end, length in self._parts(text, 0, len(text), self.chunk_size):
            if chunk and total + length > self.chunk_size:
                yield _stripped(text, chunk[0][0], chunk[-1][1])
                total -= chunk.popleft()[2]
                while chunk and (total > self.overlap or total + length > self.chunk_size):
                    total -= chunk.popleft()[2]
            chunk.append((start, end, length))
            total += length
        if chunk:
            yield _stripped(text, chunk[0][0], chunk[-1][1])

    def _parts(
        self, text: str, start: int, end: int, size: int, separators: Sequence[str] = ("\n\n", "\n")
    ) -> Iterator[tuple[int, int, int]]:
        """Offsets and lengths of paragraphs, of lines of long ones, and of parts of long lines.

        Those parts are as small as what neighbouring chunks share, and found by halving: to measure
        every word, or character, would take minutes for a large file.
        """
        if not text[start:end].strip():
            return
        length = (self.length or len)(text[start:end])
        if length <= size or end - start == 1:
            yield start, end, length
            return
        if separators:  # each begins the part that follows it
            found = re.finditer(separators[0], text[start:end])
            cuts = [start + it.start() for it in found if it.start()]
        else:
            size = self.overlap or -(-self.chunk_size // 4)
            middle = (start + end) // 2
            space = text.rfind(" ", start + 1, middle + 1)
            cuts = [space if space > 0 else middle]
        for begin, stop in pairwise([start, *cuts, end]):
            yield from self._parts(text, begin, stop, size, separators[1:])


def content_id(*parts: str | int | None) -> str:
    """A hash of the parts: 32 hexadecimal digits."""
    # JSON keeps the parts apart, so ("ab", "c") and ("a", "bc") differ.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())
