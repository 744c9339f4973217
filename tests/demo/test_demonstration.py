"""The whole demonstration, with a model of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rag_middle.demo import Demo, SavedCorpus, demonstrate
from rag_middle.demo.demonstration import EXAMPLES
from rag_middle.demo.examples import Example, Reply
from rag_middle.errors import (
    EvaluationConfigError,
    EvaluationDataError,
    MethodConfigError,
    ModelNotFoundError,
    UnknownNameError,
)
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import Method, MsPoE
from rag_middle.profiles import Profile
from rag_middle.reader import READER_NAME
from tests.retrieval.embedding import HashingEmbedder
from tests.shipped_profiles import shipping

pytest.importorskip("faiss")
pytest.importorskip("markdown_it")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def arguments(corpus: SavedCorpus) -> dict[str, Any]:
    """Arguments of a demonstration that takes seconds."""
    return {"corpus": corpus, "embedder": HashingEmbedder(), "documents": 3, "questions": 4}


def test_all_steps_run_and_agree_with_each_other(
    model_folder: Path, arguments: dict[str, Any]
) -> None:
    reported: list[tuple[int, int]] = []
    demonstration = demonstrate(
        model_folder, progress=lambda *counts: reported.append(counts), **arguments
    )
    assert demonstration.curves.labels == ("none", "pine")
    assert demonstration.curves.positions == (0, 1, 2)
    assert demonstration.curves.questions == 4
    assert reported[-1] == (2 * 3 * 4, 2 * 3 * 4)  # methods, positions, questions
    assert len(demonstration.examples) == EXAMPLES
    assert set(demonstration.examples[0].replies) == set(demonstration.curves.labels)
    assert all(
        example.different_answers("pine") == 1 for example in demonstration.examples
    )  # any order, one answer
    assert any(example.different_answers("none") > 1 for example in demonstration.examples)
    assert 1 / 3 <= demonstration.chance <= 1
    assert demonstration.model == str(model_folder)
    assert set(demonstration.seconds) == {"prepare", "examples", "measure"}


def test_measured_questions_are_others_than_the_examples(
    model_folder: Path, arguments: dict[str, Any]
) -> None:
    demo = Demo(model_folder, **arguments)
    assert not {item.id for item in demo.example_items} & {item.id for item in demo.measured_items}
    assert {len(item.documents) for item in (*demo.example_items, *demo.measured_items)} == {3}


def test_examples_are_the_first_questions_that_some_method_answers(
    model_folder: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Demo(model_folder, **arguments)
    asked = [item.question for item in demo.example_items]
    assert len(asked) == 2 * EXAMPLES

    def answered(*numbers: int) -> tuple[str, ...]:
        def ask(model: Any, items: Any, *_: Any, **__: Any) -> tuple[Example, ...]:
            return tuple(
                Example(
                    question=item.question,
                    answer="a",
                    page="b",
                    positions=(0,),
                    documents=3,
                    replies={"none": (Reply("a", number in numbers, False),)},
                )
                for number, item in enumerate(items)
            )

        monkeypatch.setattr("rag_middle.demo.demonstration.answered_examples", ask)
        return tuple(example.question for example in demo.examples())

    assert answered(1, 3, 4, 6, 7, 9) == tuple(asked[number] for number in (1, 3, 4, 6, 7))
    assert answered(8) == tuple(asked[number] for number in (0, 1, 2, 3, 8))


def labels(demo: Demo) -> tuple[str, ...]:
    return tuple(method.label for method in demo.methods)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("siw", {}, ("none", "siw", "pine")),
        ("ms_poe", {"first_layer": 0}, ("none", "ms_poe", "pine")),
        (MsPoE(first_layer=0), None, ("none", "ms_poe", "pine")),
    ],
)
def test_the_chosen_method_is_measured_beside_the_usual_ones(
    model_folder: Path,
    arguments: dict[str, Any],
    method: Any,
    options: dict[str, Any] | None,
    expected: tuple[str, ...],
) -> None:
    demo = Demo(model_folder, method=method, method_options=options, **arguments)
    assert labels(demo) == expected
    assert demo.left_out == {}


def test_methods_that_the_model_cannot_take_are_left_out_unless_they_were_asked_for(
    model_folder: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = RagMiddleModel.checked_method

    def refused(self: RagMiddleModel, method: Any, options: Any = None) -> Method:
        if getattr(method, "name", method) == "pine":
            raise MethodConfigError("not on this model")
        return checked(self, method, options)

    monkeypatch.setattr(RagMiddleModel, "checked_method", refused)
    demo = Demo(model_folder, method="siw", **arguments)
    assert labels(demo) == ("none", "siw")
    assert demo.left_out == {"pine": "not on this model"}
    with pytest.raises(MethodConfigError, match="not on this model"):
        Demo(model_folder, **arguments)


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
    arguments: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr("rag_middle.demo.demonstration.Answerer.over", pytest.fail)
    with pytest.raises(error, match=message):
        Demo("nothing", **{**arguments, **wrong})


def test_too_few_pages_are_refused(model_folder: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(EvaluationDataError, match="Ask for fewer documents"):
        Demo(model_folder, **{**arguments, "documents": 40})


def test_the_bundled_reader_is_the_default(
    model_folder: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag_middle.reader.reader_path", lambda: model_folder)
    demo = Demo(**arguments)
    assert demo.name == READER_NAME

    def missing() -> Path:
        raise ModelNotFoundError("not in this installation")

    monkeypatch.setattr("rag_middle.reader.reader_path", missing)
    with pytest.raises(ModelNotFoundError):
        Demo(**arguments)


@pytest.mark.slow
def test_settings_fitted_to_the_model_are_shown_as_another_curve(
    model_folder: Path, arguments: dict[str, Any], tmp_path: Path
) -> None:
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    profile = Profile(
        method="positional_hidden_states",
        options={"channels": [3], "factor": -1.0, "layers": [0, 1]},
        model=model_facts(model.model, model.tokenizer),
        recommended=True,
    )
    with shipping(tmp_path / "shipped", {"reader": profile}):
        demonstration = demonstrate(model_folder, **arguments)
        fitted = "positional_hidden_states:reader"
        assert demonstration.curves.labels == ("none", "pine", fitted)
        assert demonstration.curves[fitted].estimates
        # Named as the method, it is there once.
        assert labels(Demo(model_folder, method=fitted, **arguments)) == (
            "none",
            fitted,
            "pine",
        )
