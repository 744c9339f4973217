"""Answers that look like markers, piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_middle.documents import CLOSE_MARKER, OPEN_MARKER, escape, has_markers
from rag_middle.generation import EscapedText

PIECES = (
    OPEN_MARKER,
    CLOSE_MARKER,
    "[[~rm:doc]]",
    "[",
    "[[",
    "[[/",
    "~",
    "rm",
    ":do",
    "c]",
    "]",
    "a",
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=10))
def test_pieces_add_up_to_the_escaped_text(pieces: list[str]) -> None:
    text = EscapedText()
    shown = [text.push(piece) for piece in pieces] + [text.finish()]
    assert "".join(shown) == escape("".join(pieces))


@pytest.mark.parametrize("marker", [OPEN_MARKER, CLOSE_MARKER])
def test_a_marker_is_escaped_however_it_is_cut(marker: str) -> None:
    for cut in range(len(marker) + 1):
        text = EscapedText()
        shown = text.push("Yes. " + marker[:cut]) + text.push(marker[cut:]) + text.finish()
        assert not has_markers(shown)


def test_text_that_cannot_become_a_marker_is_shown_at_once() -> None:
    text = EscapedText()
    assert text.push("a[0] = b[[") == "a[0] = b"
    assert text.push("1]]") == "[[1]]"
