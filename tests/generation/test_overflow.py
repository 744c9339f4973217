"""Prompts that do not fit."""

from typing import Any

import pytest

from rag_middle import ContextPrompt, Document
from rag_middle.errors import ContextOverflowError, PromptError
from rag_middle.generation import MissingDocumentsWarning
from tests.generation.conftest import MakeModel

NEW = 4


def scored(*scores: object) -> ContextPrompt:
    documents = [
        Document(f"Text number {i}. " * (i + 1), id=f"d{i}", metadata={"score": score})
        for i, score in enumerate(scores)
    ]
    return ContextPrompt("Read.\n", documents, "Why?")


def test_a_prompt_that_just_fits_is_sent_and_one_token_more_is_refused(
    make_model: MakeModel, prompt: ContextPrompt
) -> None:
    tokens = len(make_model().encode(prompt))
    fits = make_model(method="pine", context_window=tokens + NEW)
    assert fits.generate(prompt, max_new_tokens=NEW).usage.total_tokens == tokens + NEW
    small = make_model(method="pine", context_window=tokens + NEW - 1)
    with pytest.raises(ContextOverflowError, match="1 too many") as raised:
        small.batch(["Why?", prompt], max_new_tokens=NEW, on_missing_documents="ignore")
    error = raised.value
    assert (error.prompt_tokens, error.max_new_tokens) == (tokens, NEW)
    assert (error.context_window, error.example) == (tokens + NEW - 1, 1)
    small.score(prompt, [5] * NEW)  # fits: the last token is not read
    with pytest.raises(ContextOverflowError):
        small.score(prompt, [5] * (NEW + 1))


def test_the_least_relevant_documents_are_left_out_and_reported(make_model: MakeModel) -> None:
    prompt = scored(0.9, 0.1, 0.5, 0.3)
    whole = make_model()
    lengths = whole.encode(prompt).layout.document_lengths
    excess = lengths[1] + 1  # the least relevant one alone is not enough
    model = make_model(method="pine", context_window=len(whole.encode(prompt)) + NEW - excess)
    generation = model.generate(prompt, max_new_tokens=NEW, on_overflow="drop_documents")

    assert [(d.index, d.id) for d in generation.dropped_documents] == [(1, "d1"), (3, "d3")]
    assert generation.documents == 2
    assert generation.document_ids == ("d0", "d2")
    with model.stream(prompt, max_new_tokens=NEW, on_overflow="drop_documents") as pieces:
        assert pieces.document_ids == generation.document_ids  # before the first piece
    kept = prompt.with_documents([prompt.documents[0], prompt.documents[2]])
    expected = whole.generate(kept, method="pine", max_new_tokens=NEW)
    assert generation.text == expected.text
    assert generation.usage == expected.usage


@pytest.mark.parametrize(
    "scores", [(1, 2, None, 4), (1, 2, "3", 4), (1, 2, float("nan"), 4), (3, 2, 2, 2)]
)
def test_without_scores_or_of_equal_ones_the_last_documents_go_first(
    make_model: MakeModel, scores: tuple[object, ...]
) -> None:
    prompt = scored(*scores)
    tokens = len(make_model().encode(prompt))
    model = make_model(method="pine", context_window=tokens + NEW - 1)
    for given in (prompt, prompt.marked):
        generation = model.generate(given, max_new_tokens=NEW, on_overflow="drop_documents")
        assert [d.index for d in generation.dropped_documents] == [3]


def test_a_question_that_does_not_fit_alone_is_refused(make_model: MakeModel) -> None:
    prompt = scored(1, 2)
    bare = len(make_model().encode(prompt.with_documents([])))
    model = make_model(method="pine", context_window=bare + NEW - 1)
    with pytest.raises(ContextOverflowError, match="Shorten the question") as raised:
        model.generate(prompt, max_new_tokens=NEW, on_overflow="drop_documents")
    assert raised.value.prompt_tokens == bare
    assert raised.value.without_documents


@pytest.mark.parametrize("method", ["pine", "none"])
def test_an_answer_for_which_every_document_was_left_out_says_so(
    make_model: MakeModel, method: str
) -> None:
    prompt = scored(1, 2)
    bare = len(make_model().encode(prompt.with_documents([])))
    just = make_model(method=method, context_window=bare + NEW)
    dropping: Any = {"max_new_tokens": NEW, "on_overflow": "drop_documents"}
    with pytest.raises(PromptError, match="None of the 2 documents"):
        just.generate(prompt, on_missing_documents="error", **dropping)
    with pytest.warns(MissingDocumentsWarning, match="None of the 2 documents"):
        generation = just.generate(prompt, **dropping)
    assert generation.documents == 0
    assert [d.index for d in generation.dropped_documents] == [0, 1]
    assert not generation.applied
