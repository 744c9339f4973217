"""Questions, from Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rag_middle.answering import TEMPLATE_FILE, Answerer, PromptTemplate
from rag_middle.errors import (
    ConfigError,
    ContextOverflowError,
    MethodConfigError,
    PromptError,
    UnsupportedGenerationError,
)
from rag_middle.generation import MissingDocumentsWarning, RagMiddleModel
from rag_middle.methods import NoMethod, Runner
from rag_middle.retrieval import Retriever, build_index
from rag_middle.tokens import TokenizedPrompt
from tests.answering.conftest import RIVERS
from tests.retrieval.embedding import HashingEmbedder
from tests.tiny_models import saved

QUESTION = "Which river is Nantes on, the Loire?"
SHORT: dict[str, Any] = {"max_new_tokens": 6}


def test_an_answer_tells_its_sources_best_first(answerer: Answerer) -> None:
    answer = answerer.ask(QUESTION, **SHORT)
    assert len(answer.sources) == len(RIVERS)  # fewer than top_k
    first = answer.sources[0]
    assert (first.title, first.path, first.position) == ("Nantes", "nantes.md", 0)
    scores = [source.score or 0 for source in answer.sources]
    assert scores == sorted(scores, reverse=True)
    assert answer.usage.completion_tokens == 6
    assert (answer.method, answer.applied, answer.dropped) == ("none", False, ())
    assert answer.timings.total > answer.timings.retrieve > 0


@dataclass(frozen=True, kw_only=True)
class Backwards(NoMethod):
    """Shows the documents in reverse."""

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        return range(len(prompt.layout.documents))[::-1]


def test_sources_stand_where_the_method_put_them(answerer: Answerer, model: RagMiddleModel) -> None:
    answer = answerer.ask(QUESTION, method=Backwards(), top_k=3, **SHORT)
    assert [source.position for source in answer.sources] == [2, 1, 0]
    assert answer.sources[0].title == "Nantes"
    assert [document.id for document in answer.prompt.documents] == [
        source.document.id for source in answer.sources[::-1]
    ]
    assert len(model.encode(answer.prompt, method="none")) == answer.usage.prompt_tokens
    with answerer.stream(QUESTION, method=Backwards(), top_k=3, **SHORT) as pieces:
        assert [source.position for source in pieces.sources] == [2, 1, 0]
        assert pieces.prompt == answer.prompt
    # PINE's own order, whatever the retriever's.
    given = [source.document for source in answer.sources]
    pine = [answerer.ask(QUESTION, documents=d, method="pine") for d in (given, given[::-1])]
    one, other = ([source.position for source in it.sources] for it in pine)
    assert one == other[::-1]


def test_the_method_is_the_questions_else_the_answerers_else_the_models(
    answerer: Answerer, model: RagMiddleModel
) -> None:
    pine = Answerer(model, answerer.retriever, method="pine")
    assert pine.ask(QUESTION, **SHORT).method == "pine"
    assert pine.ask(QUESTION, method="none", **SHORT).method == "none"
    options = {"min_ratio": 1.5, "first_layer": 0}
    assert pine.ask(QUESTION, method="ms_poe", method_options=options, **SHORT).method == "ms_poe"
    with pytest.raises(MethodConfigError, match="beside a method object"):
        pine.ask(QUESTION, method_options=options)
    own = RagMiddleModel(model.model, model.tokenizer, method="pine")
    assert Answerer(own, answerer.retriever).ask(QUESTION, **SHORT).method == "pine"


def test_documents_that_do_not_fit_are_left_out_the_least_relevant_first(
    answerer: Answerer, model: RagMiddleModel
) -> None:
    whole = answerer.ask(QUESTION, **SHORT)
    window = whole.usage.total_tokens - 1
    small = RagMiddleModel(model.model, model.tokenizer, context_window=window)
    tight = Answerer(small, answerer.retriever)
    answer = tight.ask(QUESTION, **SHORT)
    assert [source.position for source in answer.sources] == [0, 1, 2, None]
    assert answer.dropped == (answer.sources[3],)
    assert len(answer.prompt.documents) == 3
    with tight.stream(QUESTION, **SHORT) as pieces:
        assert pieces.sources == answer.sources
    with pytest.raises(ContextOverflowError):
        tight.ask(QUESTION, on_overflow="error", **SHORT)
    with pytest.raises(ContextOverflowError, match="Shorten the question"):
        tight.ask("Which river? " * 300, **SHORT)


def test_an_answer_that_rests_on_no_document_is_warned_about(
    answerer: Answerer, model: RagMiddleModel
) -> None:
    bare = answerer.ask(QUESTION, documents=(), on_missing_documents="ignore", **SHORT)
    window = bare.usage.total_tokens
    small = RagMiddleModel(model.model, model.tokenizer, context_window=window)
    tight = Answerer(small, answerer.retriever)
    with pytest.warns(MissingDocumentsWarning, match="None of the 4 documents") as seen:
        answer = tight.ask(QUESTION, **SHORT)
    assert seen[0].filename == __file__
    assert len(answer.dropped) == 4
    with pytest.raises(PromptError, match="None of the 4 documents"):
        tight.stream(QUESTION, on_missing_documents="error", **SHORT)
    picky = Answerer(model, Retriever(index=answerer.retriever.index, min_score=0.99))
    with pytest.warns(MissingDocumentsWarning, match="No document was found"):
        assert picky.ask(QUESTION, **SHORT).sources == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 3}, "Did you mean 'max_new_tokens'"),
        ({"temperature": -1}, "temperature must be"),
        ({"num_beams": 2}, None),
    ],
)
def test_options_are_checked_before_anything_is_searched(
    answerer: Answerer, embedder: HashingEmbedder, options: dict[str, Any], message: str | None
) -> None:
    embedder.embedded.clear()
    if message is None:
        answerer.ask(QUESTION, **SHORT, **options)  # a search with beams ends, and cannot stream
        message = "knows its text only at the end"
        with pytest.raises(UnsupportedGenerationError, match=message):
            answerer.stream(QUESTION, **options)
        return
    for ask in (answerer.ask, answerer.stream):
        with pytest.raises(UnsupportedGenerationError, match=message):
            ask(QUESTION, **options)
    assert embedder.embedded == []


# --- over ------------------------------------------------------------------------------------


def test_an_index_can_be_given_or_its_folder(
    docs: Path, model: RagMiddleModel, embedder: HashingEmbedder, tmp_path: Path
) -> None:
    index = build_index(docs, tmp_path / "index", embedder=embedder).index
    one = Answerer.over(index, model=model, top_k=2)
    other = Answerer.over(tmp_path / "index", model=model, embedder=embedder, top_k=2)
    assert one.ask(QUESTION, **SHORT).sources == other.ask(QUESTION, **SHORT).sources
    assert len(one.ask(QUESTION, **SHORT).sources) == 2
    with pytest.raises(ConfigError, match="cannot be rebuilt without its documents"):
        Answerer.over(tmp_path / "index", model=model, embedder=embedder, rebuild=True)


def test_without_a_model_the_default_one_answers_in_its_own_form(
    docs: Path,
    model: RagMiddleModel,
    embedder: HashingEmbedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = saved(model, tmp_path / "reader")
    (reader / TEMPLATE_FILE).write_text('{"document": "({title}) {text}"}')
    monkeypatch.setattr("rag_middle.answering.answerer.default_model", lambda: str(reader))
    index = build_index(docs, embedder=embedder).index
    answerer = Answerer.over(index)
    assert answerer.prompt_template == PromptTemplate(document="({title}) {text}")
    shown = answerer.ask(QUESTION, top_k=1, **SHORT).prompt.text
    assert shown.startswith("(Nantes) Nantes lies on the Loire.\n\nQuestion: ")
    loaded = RagMiddleModel.from_pretrained(reader)
    assert Answerer.over(index, model=loaded).prompt_template == answerer.prompt_template
    mine = PromptTemplate()
    assert Answerer.over(index, prompt_template=mine).prompt_template is mine
