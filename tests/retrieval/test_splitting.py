"""Chunks are parts of their records, and say which."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_middle.documents import Document
from rag_middle.retrieval import split

PROSE = "\n\n".join(
    f"Paragraph {number} begins here. " + " ".join(f"w{number}x{at}" for at in range(60))
    for number in range(8)
)
ROWS = "\n".join(f"| town {number} | river {number} |" for number in range(100))
HEADER = "| town | river |\n| --- | --- |\n"


def _words(text: str) -> int:
    return len(text.split())


def _long_words_are_one(text: str) -> int:
    """As WordPiece counts: a word that is too long for it is one unknown token."""
    return sum(1 if len(word) > 20 else max(1, len(word) // 3) for word in text.split())


MEASURES = {"characters": len, "words": _words, "tokens": _long_words_are_one}


def _covered(chunks: list[Document]) -> set[int]:
    return {at for it in chunks for at in range(it.metadata["start"], it.metadata["end"])}


def _letters(text: str) -> set[int]:
    return {at for at, letter in enumerate(text) if letter.strip()}


@pytest.mark.parametrize(("size", "unit"), [(200, "characters"), (30, "words")])
@pytest.mark.parametrize("text", [PROSE, "one line\n" * 300, "word " * 400], ids=len)
def test_chunks_cover_the_text_in_order_and_keep_their_size(
    size: int, unit: str, text: str
) -> None:
    chunks = split(
        [Document(text, metadata={"source": "a.txt", "start": 10})], size, MEASURES[unit]
    )
    for chunk in chunks:
        assert chunk.text == text[chunk.metadata["start"] - 10 : chunk.metadata["end"] - 10]
        assert MEASURES[unit](chunk.text) <= size
    for one, following in pairwise(chunk.metadata for chunk in chunks):
        shared = text[following["start"] - 10 : one["end"] - 10]
        assert 0 < MEASURES[unit](shared) <= size // 10
    assert {at + 10 for at in _letters(text)} <= _covered(chunks)
    assert len(chunks) > 4


@pytest.mark.parametrize("unit", MEASURES)
@given(
    parts=st.lists(
        st.sampled_from(["ab ", "|r|1\n", "|-|-|\n", "the end. ", "- ", "\n\n", "\t", "ยาว", "。"])
    ),
    times=st.integers(1, 12),
    size=st.sampled_from([3, 20, 60]),
)
@example(parts=["แม่น้ำเจ้าพระยา"], times=60, size=20)
@example(
    parts=["x\na \t\t\t\t\tab aab \ta\t\ta \tab x\nx\n aab ab x\n\tx\n ab aab \tab aab ab"],
    times=3,
    size=60,
)
def test_nothing_is_left_out_and_no_chunk_is_within_its_neighbour(
    unit: str, parts: list[str], times: int, size: int
) -> None:
    text = "".join(parts) * times
    chunks = split([Document(text, metadata={"source": "a.txt"})], size, MEASURES[unit])
    assert _letters(text) <= _covered(chunks)
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for one, following in pairwise(chunk.metadata for chunk in chunks):
        assert one["start"] < following["start"]
        assert one["end"] < following["end"]


def test_text_without_spaces_is_not_measured_character_by_character() -> None:
    measured: list[str] = []

    def length(text: str) -> int:
        measured.append(text)
        return len(text)

    assert len(split([Document("#" * 20_000, metadata={"source": "a.txt"})], 100, length)) > 100
    assert len(measured) < 5_000


@pytest.mark.parametrize("before", ["", "Some towns:\n\n"])
def test_the_rows_of_a_table_that_is_cut_stand_under_its_header(before: str) -> None:
    text = f"{before}{HEADER}{ROWS}\n\nThat were the towns."
    chunks = split([Document(text, metadata={"source": "a.md"})], 200)
    rows = [chunk for chunk in chunks if "| town 5" in chunk.text]
    assert len(rows) > 1
    for chunk in rows:
        assert chunk.text.removeprefix(before).startswith(HEADER + "| town ")
        assert len(chunk.text) <= 200
        start, end = chunk.metadata["start"], chunk.metadata["end"]
        assert chunk.text in (text[start:end], HEADER + text[start:end])
    assert sum(chunk.text.count("| river |") for chunk in chunks) > len(rows)
    assert chunks[-1].text.endswith("\n\nThat were the towns.")
    assert split([Document("That were the towns.", metadata={"source": "a.md"})])[0].text[0] == "T"


def test_a_header_that_leaves_no_room_for_rows_is_not_repeated() -> None:
    chunks = split([Document(HEADER + ROWS, metadata={"source": "a.md"})], 50)
    assert sum("| town | river |" in chunk.text for chunk in chunks) == 1


def test_ids_depend_on_content_source_and_place_alone() -> None:
    def ids(**changes: object) -> list[str | None]:
        fields: dict[str, Any] = {"text": PROSE, "title": "T", "metadata": {"source": "a.txt"}}
        return [chunk.id for chunk in split([Document(**fields | changes)])]

    assert ids() == ids(metadata={"source": "a.txt", "line": 4})
    for change in ({"text": PROSE + "!"}, {"metadata": {"source": "b.txt"}}, {"title": None}):
        assert not set(ids()) & set(ids(**change))
