"""Records cut into documents for an index, which say where they come from."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.retrieval.readers import Record

# Header with the line below it, then the rows. A cut at lines does not part the first two.
_TABLE = re.compile(r"^(\|.*\n\|[ :|-]+\n)(?:\|.*(?:\n|\Z))+", re.MULTILINE)
_CUTS = (r"\n\n", r"\n(?!\| *:?-)")


class _Part(NamedTuple):
    """A part of a text: offsets, and its length as it is measured."""

    start: int
    end: int
    length: int


def split(
    records: Iterable[Record], chunk_size: int = 1000, length: Callable[[str], int] = len
) -> list[Document]:
    """The records cut at paragraphs, else lines, else words, else characters, in order.

    Neighbours share a tenth of their size at most. Rows of a table that is cut stand under its
    header again, unless that takes more than half of a chunk.

    Args:
        records: of `load`.
        chunk_size: the largest length of a text.
        length: counts a text: characters, or for example the tokens of an embedder
            (:meth:`SentenceTransformerEmbedder.count_tokens`).

    Returns:
        Parts of the records with their title, as documents. `metadata` is the record's, with
        ``source``; ``start`` and ``end``, offsets in characters of the source; for files with lines
        ``first_line`` and ``last_line``; and the ``heading`` above. The id stays as long as these
        offsets and the record's title, text and source do.

    Raises:
        ConfigError: `chunk_size` is below 1.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size must be at least 1, got {chunk_size}.")
    return [it for record in records for it in _split_record(record, chunk_size, length)]


def _split_record(
    record: Record, chunk_size: int, length: Callable[[str], int]
) -> Iterator[Document]:
    text, overlap = record.text, chunk_size // 10
    tables = [  # rows from and to, counted from the line end before each; header and its length
        (table.end(1) - 1, table.end() - 1, table[1], cost)
        for table in _TABLE.finditer(text)
        if (cost := length(table[1])) <= chunk_size // 2
    ]

    def header_at(offset: int) -> tuple[str, int]:
        """The header that a chunk from there on needs, and its length."""
        inside = (it for it in tables if it[0] <= offset < it[1])
        return next(((header, cost) for _, _, header, cost in inside), ("", 0))

    def size(parts: Sequence[_Part]) -> int:
        return sum(part.length for part in parts) + header_at(parts[0].start)[1]

    of_record = content_id(record.source, record.title, text)
    line, counted = 0, 0
    for start, end in _chunks(_parts(text, chunk_size, overlap, length), chunk_size, overlap, size):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        end = start + len(text[start:end].rstrip())
        place: dict[str, Any] = {"start": record.start + start, "end": record.start + end}
        if record.lines:
            line += text.count("\n", counted, start)
            counted = start
            last = line + text.count("\n", start, end)
            place |= {"first_line": record.lines[line], "last_line": record.lines[last]}
        if above := bisect_right(record.headings, start, key=lambda heading: heading[0]):
            place["heading"] = record.headings[above - 1][1]
        yield Document(
            header_at(start)[0] + text[start:end],
            title=record.title,
            id=content_id(of_record, start, end),
            metadata={**record.metadata, "source": record.source, **place},
        )


def _chunks(
    parts: Iterable[_Part], chunk_size: int, overlap: int, size: Callable[[Sequence[_Part]], int]
) -> Iterator[tuple[int, int]]:
    """Offsets of neighbouring parts that are small enough together; no chunk is in another."""
    chunk: list[_Part] = []
    for part in parts:
        if chunk and size([*chunk, part]) > chunk_size:
            yield chunk[0].start, chunk[-1].end
            chunk = chunk[1:]
            while chunk and (
                sum(it.length for it in chunk) > overlap or size([*chunk, part]) > chunk_size
            ):
                chunk = chunk[1:]
        chunk.append(part)
    if chunk:
        yield chunk[0].start, chunk[-1].end


def _parts(
    text: str, chunk_size: int, overlap: int, length: Callable[[str], int]
) -> Iterator[_Part]:
    """Paragraphs, lines of those that are too long, and parts of lines that are.

    Those parts are as small as what neighbouring chunks share, and found by halving: to measure
    every word, or character, would take minutes for a large file.
    """

    def cut(start: int, end: int, size: int, separators: Sequence[str]) -> Iterator[_Part]:
        if not text[start:end].strip():
            return
        measured = length(text[start:end])
        if measured <= size or end - start == 1:
            yield _Part(start, end, measured)
            return
        if separators:  # each begins the part that follows it
            found = re.finditer(separators[0], text[start:end])
            cuts = [start + it.start() for it in found if it.start()]
        else:
            size = overlap or -(-chunk_size // 4)
            middle = (start + end) // 2
            space = text.rfind(" ", start + 1, middle + 1)
            cuts = [space if space > 0 else middle]
        for begin, stop in pairwise([start, *cuts, end]):
            yield from cut(begin, stop, size, separators[1:])

    return cut(0, len(text), chunk_size, _CUTS)


def content_id(*parts: str | int | None) -> str:
    """A hash of the parts: 32 hexadecimal digits."""
    # JSON keeps the parts apart, so ("ab", "c") and ("a", "bc") differ.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
