"""Documents through plain text and back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_middle.documents import (
    CLOSE_MARKER,
    OPEN_MARKER,
    ContextPrompt,
    Document,
    escape,
    has_markers,
    mark,
    parse,
    unescape,
    unmark,
)
from rag_middle.errors import MarkerError

O, C = OPEN_MARKER, CLOSE_MARKER  # noqa: E741

modest = settings(max_examples=60, derandomize=True, deadline=None)
# Any text, and text made of the pieces that markers and their escapes are made of.
PIECES = (O, C, "[[~rm:doc]]", "[[~~/rm:doc]]", "[", "[[", "]", "]]", "~", "/", "rm:doc", "\n", "é")
texts = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def texts_of(prompt: ContextPrompt) -> list[str]:
    return [document.text for document in prompt.documents]


@modest
@given(texts)
def test_escaping_is_undone_exactly(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not has_markers(escape(text))


@modest
@given(st.lists(texts, min_size=1, max_size=4), texts, texts)
def test_any_marked_documents_are_found_again(
    documents: list[str], prefix: str, suffix: str
) -> None:
    prompt = ContextPrompt(prefix, documents, suffix)
    found = parse(prompt.marked)
    assert texts_of(found) == documents
    assert found.prefix == prefix
    assert found.text == prompt.text


@modest
@given(st.lists(texts, min_size=2, max_size=4), texts, st.sampled_from(["", " ", "\n", "\n\n"]))
def test_a_parsed_prompt_is_the_prompt_that_was_marked(
    documents: list[str], suffix: str, separator: str
) -> None:
    prompt = ContextPrompt("Read:", documents, suffix, separator)
    assert parse(prompt.marked) == prompt


@pytest.mark.parametrize("before", ["[", "[[", "[[rm:doc", "[[/rm:doc]", "[[~", "]"])
@pytest.mark.parametrize("after", ["[", "rm:doc]]", "]", "]]", "/rm:doc]]"])
def test_text_next_to_a_marker_forges_none(before: str, after: str) -> None:
    text = before + mark(after + "x" + before) + after
    found = parse(text)
    assert (found.prefix, texts_of(found), found.suffix) == (before, [after + "x" + before], after)


def test_markers_are_printable_and_free_of_what_templates_change() -> None:
    safe = set(string.ascii_letters + "[]/:")
    assert set(O + C) <= safe


def test_a_marked_document_shows_its_title() -> None:
    assert mark(Document("Capital.", title="Paris", id="7")) == f"{O}Paris\nCapital.{C}"


def test_a_text_without_markers_is_all_suffix() -> None:
    assert parse("Just a question [[~rm:doc]]") == ContextPrompt(
        suffix="Just a question [[rm:doc]]"
    )


@pytest.mark.parametrize(
    ("text", "has"), [(O, True), (C, True), ("[[~rm:doc]]", False), ("[[RM:DOC]]", False)]
)
def test_has_markers(text: str, has: bool) -> None:
    assert has_markers(text) is has


class TestSeparator:
    def test_is_the_gap_between_the_documents(self) -> None:
        found = parse(f"{O}a{C}\n{O}b{C}\nQuestion?")
        assert (found.separator, found.suffix) == ("\n", "Question?")

    def test_is_the_most_common_gap(self) -> None:
        found = parse(f"{O}a{C} {O}b{C}\n{O}c{C}\n{O}d{C}\n\nQ")
        assert (found.separator, found.suffix) == ("\n", "\nQ")

    def test_is_the_first_gap_where_none_is_more_common(self) -> None:
        assert parse(f"{O}a{C} {O}b{C}\n{O}c{C}").separator == " "

    def test_is_added_after_the_last_document_where_it_is_missing(self) -> None:
        found = parse(f"{O}a{C}\n{O}b{C}</documents>")
        assert found.text == "a\nb\n</documents>"

    @pytest.mark.parametrize("blank", ["", "\n", "\n\n", " \n"])
    def test_of_a_single_document_is_the_blank_lines_after_it(self, blank: str) -> None:
        found = parse(f"{O}a{C}{blank}  Question?")
        assert (found.separator, found.suffix) == (blank, "  Question?")


class TestOtherTextBetweenDocuments:
    TEXT = f"U: {O}old{C} Why? A: so. U: {O}a{C}\n{O}b{C}\nAnd?"

    def test_is_refused_by_name_with_the_way_out(self) -> None:
        with pytest.raises(MarkerError, match=r"'Why\? A: so\. U:' stands between .*groups='last'"):
            parse(self.TEXT)

    def test_the_error_points_at_it(self) -> None:
        with pytest.raises(MarkerError) as caught:
            parse(self.TEXT)
        assert self.TEXT[caught.value.position :].startswith("Why?")

    def test_stays_in_the_prefix_if_the_last_group_is_asked_for(self) -> None:
        found = parse(self.TEXT, groups="last")
        assert found == ContextPrompt("U: old Why? A: so. U: ", ["a", "b"], "And?", "\n")

    def test_asking_for_the_last_group_changes_nothing_where_there_is_one(self) -> None:
        text = f"Read: {O}a{C}\n{O}b{C}\nAnd?"
        assert parse(text, groups="last") == parse(text)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        (f"ab{O}c", 2, "never closed"),
        (f"{O}c{C}\n{O}d", 22 + 1, "never closed"),
        (f"ab{C}", 2, "never opened"),
        (f"{O}c{C}{C}", 22, "never opened"),
        (f"{O}a{O}b{C}{C}", 11, r"inside the one opened at character 0\b"),
    ],
)
@pytest.mark.parametrize("function", [parse, unmark])
def test_unbalanced_markers_are_refused_where_they_stand(
    function: object, text: str, position: int, message: str
) -> None:
    assert callable(function)
    with pytest.raises(MarkerError, match=message) as caught:
        function(text)
    assert caught.value.position == position
    assert caught.value.excerpt in text
    assert caught.value.excerpt.find(text[position : position + 4]) >= 0


def test_unmark_leaves_the_documents_as_plain_text() -> None:
    assert unmark(f"Read [[~~rm:doc]]: {mark(f'a{C}')}\n{mark('b')}?") == (
        f"Read [[~rm:doc]]: a{C}\nb?"
    )
