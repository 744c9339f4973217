"""Documents cut into parts for an index, which say where they come from."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.plain_data import is_whole
from rag_middle.retrieval.readers import headings

# Header with the line below it, then the rows; to search for | is quicker than for ^. A cut at
# lines does not part the first two.
_TABLE = re.compile(r"(\|(?<=^\|).*\n\|[ :|-]+\n)(?:\|.*(?:\n|\Z))+", re.MULTILINE)
_LONGEST_UNIT = 16  # characters of what a text is measured in: tokens are shorter, mostly
_CUTS = (r"\n\n", r"\n(?!\| *:?-)")


def split(
    documents: Iterable[Document], chunk_size: int = 1000, length: Callable[[str], int] = len
) -> list[Document]:
    """The documents cut at paragraphs, else lines, else words, else characters, in order.

    Neighbours share a tenth of their size at most. Rows of a table that is cut stand under its
    header again, unless that takes more than half of a chunk.

    Args:
        documents: of `load`.
        chunk_size: the largest length of a text.
        length: counts a text: characters, or for example the tokens of an embedder
            (:meth:`SentenceTransformerEmbedder.count_tokens`).

    Returns:
        Parts of the documents with their title. `metadata` is the document's, with ``start`` and
        ``end``, offsets in characters of the source; for files with lines ``first_line`` and
        ``last_line``; and the ``heading`` above. The id stays as long as these offsets and the
        document's title, text and source do.

    Raises:
        ConfigError: `chunk_size` is below 1.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size must be at least 1, got {chunk_size}.")
    parts = []
    for document in documents:
        text, metadata = document.text, {**document.metadata}
        before, lines = metadata.pop("start", 0), metadata.pop("line_numbers", ())
        # Documents of others may mean something else by these names.
        before = before if is_whole(before, 0) else 0
        lines = lines if isinstance(lines, list) else ()
        cut = _Cut(text, chunk_size, length)
        line_ends = [end.start() for end in re.finditer("\n", text)] if lines else []
        marks = [*headings(text)]
        of_document = content_id(metadata.get("source"), document.title, text)
        for start, end in cut.chunks():
            place: dict[str, Any] = {"start": before + start, "end": before + end}
            if lines:
                place["first_line"] = lines[bisect_left(line_ends, start)]
                place["last_line"] = lines[bisect_left(line_ends, end)]
            if above := bisect_right(marks, start, key=itemgetter(0)):
                place["heading"] = marks[above - 1][2]
            part = Document(
                cut.header(start) + text[start:end],
                title=document.title,
                id=content_id(of_document, start, end),
                metadata={**metadata, **place},
            )
            parts.append(part)
    return parts


class _Part(NamedTuple):
    """A part of a text: offsets, and its length as it is measured."""

    start: int
    end: int
    length: int


class _Cut:
    """How a text is cut; arguments as for `split`."""

    def __init__(self, text: str, chunk_size: int, length: Callable[[str], int]) -> None:
        self.text, self.chunk_size, self.length = text, chunk_size, length
        self.overlap = chunk_size // 10
        self._header_length = cache(length)
        self._tables = [  # the rows from and to, from the line end before each one; the header
            (table.end(1) - 1, table.end() - 1, table[1])
            for table in _TABLE.finditer(text)
            if self._header_length(table[1]) <= chunk_size // 2
        ]

    def header(self, offset: int) -> str:
        """What a chunk from there on needs above it: the header of the table whose rows it has."""
        above = bisect_right(self._tables, offset, key=itemgetter(0))
        _, end, header = self._tables[above - 1] if above else (0, 0, "")
        return header if offset < end else ""

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Offsets of neighbouring parts that are small enough together; none is in another."""
        chunk: deque[_Part] = deque()
        total = 0
        for part in self._parts(0, len(self.text), self.chunk_size):
            if chunk and total + part.length > self._room(chunk[0]):
                yield self._stripped(chunk)
                total -= chunk.popleft().length
                while chunk and (
                    total > self.overlap or total + part.length > self._room(chunk[0])
                ):
                    total -= chunk.popleft().length
            chunk.append(part)
            total += part.length
        if chunk:
            yield self._stripped(chunk)

    def _room(self, first: _Part) -> int:
        """The largest length of a chunk from this part on, without the header above it."""
        header = self.header(first.start)
        return self.chunk_size - (self._header_length(header) if header else 0)

    def _stripped(self, chunk: Sequence[_Part]) -> tuple[int, int]:
        part = self.text[chunk[0].start : chunk[-1].end]
        start = chunk[0].start + len(part) - len(part.lstrip())
        return start, start + len(part.strip())

    def _parts(
        self, start: int, end: int, size: int, separators: Sequence[str] = _CUTS
    ) -> Iterator[_Part]:
        """Paragraphs, lines of those that are too long, and parts of lines that are.

        Those parts are as small as what neighbouring chunks share, and found by halving: to measure
        every word, or character, would take minutes for a large file.
        """
        text = self.text[start:end]
        if not text.strip():
            return
        # Where the beginning is too long already, the tokens of the rest are not counted.
        beginning = text[: _LONGEST_UNIT * size]
        length = self.length(beginning)
        if length <= size and len(beginning) < len(text):
            length = self.length(text)
        if length <= size or len(text) == 1:
            yield _Part(start, end, length)
            return
        if separators:  # each begins the part that follows it
            breaks = re.finditer(separators[0], text)
            cuts = [start + it.start() for it in breaks if it.start()]
        else:
            size = self.overlap or -(-self.chunk_size // 4)
            middle = (start + end) // 2
            space = self.text.rfind(" ", start + 1, middle + 1)
            cuts = [space if space > 0 else middle]
        for begin, stop in pairwise([start, *cuts, end]):
            yield from self._parts(begin, stop, size, separators[1:])


def content_id(*parts: str | int | None) -> str:
    """A hash of the parts: 32 hexadecimal digits."""
    # JSON keeps the parts apart, so ("ab", "c") and ("a", "bc") differ.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
