"""Chunks are parts of their records, and say which."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_middle.errors import ConfigError
from rag_middle.retrieval import Record, Splitter

PROSE = "\n\n".join(
    f"Paragraph {number} begins here. " + " ".join(f"w{number}x{at}" for at in range(60))
    for number in range(8)
)


def _words(text: str) -> int:
    return len(text.split())


SPLITTERS = {
    "characters": Splitter(chunk_size=200, overlap=40),
    "words": Splitter(chunk_size=30, overlap=6, length=_words, unit="words"),
    "no overlap": Splitter(chunk_size=200, overlap=0),
}


@pytest.mark.parametrize("splitter", SPLITTERS.values(), ids=SPLITTERS)
@pytest.mark.parametrize("text", [PROSE, "one line\n" * 300, "word " * 400], ids=len)
def test_chunks_cover_the_text_in_order_and_keep_their_size(splitter: Splitter, text: str) -> None:
    chunks = splitter.split([Record(text=text, source="a.txt", start=10)])
    measure = splitter.length or len
    reached = 0
    for chunk in chunks:
        assert chunk.text == text[chunk.start - 10 : chunk.end - 10]
        assert measure(chunk.text) <= splitter.chunk_size
        assert not text[reached : chunk.start - 10].strip()  # nothing is left out
        reached = chunk.end - 10
    assert not text[reached:].strip()
    assert len(chunks) > 4


def _long_words_are_one(text: str) -> int:
    """As WordPiece counts: a word that is too long for it is one unknown token."""
    return sum(1 if len(word) > 20 else max(1, len(word) // 3) for word in text.split())


MEASURES = {"characters": None, "words": _words, "tokens": _long_words_are_one}


@pytest.mark.parametrize("unit", MEASURES)
@given(
    parts=st.lists(
        st.sampled_from(["ab ", "row|1\n", "the end. ", "- ", "\n\n", "\t", "ยาว", "。"])
    ),
    times=st.integers(1, 12),
)
@example(parts=["แม่น้ำเจ้าพระยา"], times=60)
@example(
    parts=["x\na \t\t\t\t\tab aab \ta\t\ta \tab x\nx\n aab ab x\n\tx\n ab aab \tab aab ab"], times=3
)
def test_text_that_repeats_itself_is_left_out_nowhere(
    unit: str, parts: list[str], times: int
) -> None:
    text = "".join(parts) * times
    splitter = Splitter(chunk_size=20, overlap=6, length=MEASURES[unit], unit=unit)
    chunks = splitter.split([Record(text=text, source="a.txt")])
    assert {at for at, letter in enumerate(text) if letter.strip()} <= {
        at for chunk in chunks for at in range(chunk.start, chunk.end)
    }


@pytest.mark.parametrize(("size", "overlap"), [(3, 2), (10, 9), (25, 20), (60, 20)])
@given(parts=st.lists(st.sampled_from(["word", " ", "  ", "\n", "\n\n", "ไทย", ".", "long" * 7])))
@example(parts=["word", " ", " ", "word", " "])
def test_no_chunk_is_within_its_neighbour(size: int, overlap: int, parts: list[str]) -> None:
    splitter = Splitter(chunk_size=size, overlap=overlap)
    text = "".join(parts)
    chunks = splitter.split([Record(text=text, source="a.txt")])
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for one, following in pairwise(chunks):
        assert one.start < following.start
        assert one.end < following.end
    assert {at for at, letter in enumerate(text) if letter.strip()} <= {
        at for chunk in chunks for at in range(chunk.start, chunk.end)
    }


def test_text_without_spaces_is_not_measured_character_by_character() -> None:
    measured: list[str] = []

    def length(text: str) -> int:
        measured.append(text)
        return len(text)

    splitter = Splitter(chunk_size=100, overlap=10, length=length, unit="letters")
    assert len(splitter.split([Record(text="#" * 20_000, source="a.txt")])) > 100
    assert len(measured) < 5_000


def test_ids_depend_on_content_source_and_place_alone() -> None:
    def ids(**changes: object) -> list[str]:
        fields = {"text": PROSE, "source": "a.txt", "title": "T", **changes}
        return [chunk.id for chunk in Splitter().split([Record(**fields)])]  # type: ignore[arg-type]

    assert ids() == ids(metadata={"line": 4})
    for change in ({"text": PROSE + "!"}, {"source": "b.txt"}, {"title": None}):
        assert not set(ids()) & set(ids(**change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_size": 0, "overlap": 0}, r"below chunk_size \(0\)"),
        ({"chunk_size": 10, "overlap": 10}, r"below chunk_size \(10\), got 10"),
        ({"overlap": -1}, "overlap must be at least 0"),
        ({"length": len}, "length and unit belong together"),
        ({"unit": "tokens"}, "length and unit belong together"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Splitter(**options)  # type: ignore[arg-type]
