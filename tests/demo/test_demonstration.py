"""The whole demonstration, with a model of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rag_middle.demo import Demo, SavedCorpus, demonstrate
from rag_middle.demo.steps import EXAMPLES, READER
from rag_middle.errors import (
    EvaluationConfigError,
    EvaluationDataError,
    MethodConfigError,
    ModelNotFoundError,
    UnknownNameError,
)
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import MsPoE
from rag_middle.profiles import Profile
from tests.retrieval.embedding import HashingEmbedder
from tests.shipped_profiles import shipping

pytest.importorskip("faiss")
pytest.importorskip("langchain_text_splitters")
pytest.importorskip("markdown_it")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def given(corpus: SavedCorpus) -> dict[str, Any]:
    """Arguments of a demonstration that takes seconds."""
    return {"corpus": corpus, "embedder": HashingEmbedder(), "documents": 3, "questions": 4}


def test_all_steps_run_and_agree_with_each_other(model_folder: Path, given: dict[str, Any]) -> None:
    told: list[tuple[int, int]] = []
    shown = demonstrate(
        model_folder, progress=lambda done, all_: told.append((done, all_)), **given
    )
    assert shown.labels == ("none", "pine", "ms_poe")
    assert shown.curves.places == (0, 1, 2)
    assert shown.curves.questions == 4
    assert told[-1] == (3 * 3 * 4, 3 * 3 * 4)  # methods, places, questions
    assert len(shown.examples) == EXAMPLES
    assert set(shown.examples[0].replies) == set(shown.labels)
    assert all(example.answers("pine") == 1 for example in shown.examples)  # any order, one answer
    assert any(example.answers("none") > 1 for example in shown.examples)
    assert 1 / 3 <= shown.chance <= 1
    assert shown.model == str(model_folder)
    assert set(shown.seconds) == {"prepare", "examples", "measure"}


def test_measured_questions_are_others_than_the_examples(
    model_folder: Path, given: dict[str, Any]
) -> None:
    demo = Demo(model_folder, **given)
    assert not {item.id for item in demo.few} & {item.id for item in demo.asked.items}
    assert {len(item.documents) for item in (*demo.few, *demo.asked.items)} == {3}


@pytest.mark.parametrize(
    ("method", "options", "labels"),
    [
        ("siw", {}, ("none", "siw", "pine", "ms_poe")),
        ("ms_poe", {"first_layer": 0}, ("none", "ms_poe", "pine")),
        (MsPoE(first_layer=0), None, ("none", "ms_poe", "pine")),
    ],
)
def test_the_chosen_method_is_measured_beside_the_usual_ones(
    model_folder: Path,
    given: dict[str, Any],
    method: Any,
    options: dict[str, Any] | None,
    labels: tuple[str, ...],
) -> None:
    demo = Demo(model_folder, method=method, method_options=options, **given)
    assert demo.labels == labels
    assert demo.left_out == {}


def test_methods_that_the_model_cannot_take_are_left_out_unless_they_were_asked_for(
    model_folder: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Any, method: Any) -> None:
        if method.name == "ms_poe":
            raise MethodConfigError("not on this model")

    monkeypatch.setattr("rag_middle.generation.RagMiddleModel.checked_method", refused)
    demo = Demo(model_folder, **given)
    assert demo.labels == ("none", "pine")
    assert demo.left_out == {"ms_poe": "not on this model"}
    with pytest.raises(MethodConfigError, match="not on this model"):
        Demo(model_folder, method="ms_poe", **given)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"questions": 0}, EvaluationConfigError, "questions must be at least 1"),
        ({"documents": 1}, EvaluationConfigError, "documents must be at least 2"),
        ({"method": "none"}, EvaluationConfigError, "name one"),
        ({"method": "pinee"}, UnknownNameError, "Did you mean 'pine'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(
    given: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr("rag_middle.demo.steps.Answerer.over", pytest.fail)
    with pytest.raises(error, match=message):
        Demo("nothing", **{**given, **wrong})


def test_too_few_pages_are_told(model_folder: Path, given: dict[str, Any]) -> None:
    with pytest.raises(EvaluationDataError, match="Ask for fewer documents"):
        Demo(model_folder, **{**given, "documents": 40})


def test_the_bundled_reader_is_the_default(
    model_folder: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag_middle.reader.reader_path", lambda: model_folder)
    demo = Demo(**given)
    assert demo.name == READER

    def missing() -> Path:
        raise ModelNotFoundError("not in this installation")

    monkeypatch.setattr("rag_middle.reader.reader_path", missing)
    with pytest.raises(ModelNotFoundError):
        Demo(**given)


def test_settings_fitted_to_the_model_are_shown_as_another_curve(
    model_folder: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    profile = Profile(
        method="positional_hidden_states",
        options={"channels": [3], "factor": -1.0, "layers": [0, 1]},
        model=model_facts(model.model, model.tokenizer),
        recommended=True,
    )
    with shipping(tmp_path / "shipped", {"reader": profile}):
        shown = demonstrate(model_folder, **given)
        fitted = "positional_hidden_states:reader"
        assert shown.labels == ("none", "pine", "ms_poe", fitted)
        assert shown.curves[fitted].estimates
        # Named as the method, it is there once.
        assert Demo(model_folder, method=fitted, **given).labels == (
            "none",
            fitted,
            "pine",
            "ms_poe",
        )
