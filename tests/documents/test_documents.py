"""Documents and prompts as values."""

import pytest

from rag_middle.documents import ContextPrompt, Document, mark
from rag_middle.errors import PromptError


def test_a_title_stands_on_a_line_before_the_text() -> None:
    shown = Document("Capital of France.", title="Paris", id="secret", metadata={"secret": 1})
    assert shown.render() == "Paris\nCapital of France."
    for title in (None, ""):
        assert Document("Capital of France.", title=title).render() == "Capital of France."


def test_the_separator_follows_every_document_the_last_one_too() -> None:
    prompt = ContextPrompt("Read:\n", ["one", "two"], "Question?", separator=" | ")
    assert prompt.text == "Read:\none | two | Question?"


def test_one_string_is_not_a_list_of_documents() -> None:
    with pytest.raises(PromptError, match="list of documents"):
        ContextPrompt(documents="one")


@pytest.mark.parametrize("given", [None, 3, {"text": "a"}, ["a"]])
def test_something_else_is_no_document(given: object) -> None:
    with pytest.raises(PromptError, match="Document 1 must be a Document or a string"):
        ContextPrompt(documents=["a", given])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="A document must be a Document or a string"):
        mark(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2], [0, 1, 2], [-1, 0]])
def test_an_order_that_misses_or_repeats_a_document_is_refused(order: list[int]) -> None:
    with pytest.raises(PromptError, match="each of the 2 documents once"):
        ContextPrompt(documents=["a", "b"]).permuted(order)


@pytest.mark.parametrize(
    ("given", "scores"),
    [
        ((0.5, 2, -1.0), (0.5, 2.0, -1.0)),
        ((0.5, None, 1.0), None),
        ((0.5, float("nan"), 1.0), None),
        ((0.5, True, 1.0), None),
        ((0.5, "0.4", 1.0), None),
        ((), None),
    ],
)
def test_scores_are_known_where_every_document_has_one(
    given: tuple[object, ...], scores: tuple[float, ...] | None
) -> None:
    documents = [Document("text", metadata={"score": score}) for score in given]
    assert ContextPrompt(documents=documents).scores == scores
