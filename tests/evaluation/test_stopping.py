"""Asking until the question is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag_middle.errors import EvaluationConfigError, UnknownNameError
from rag_middle.evaluation import Measurement, diagnose, run
from rag_middle.evaluation.metrics import metric
from rag_middle.evaluation.stopping import (
    ask_until_decided,
    is_gap_found,
    looks,
    run_until_decided,
    worth_asking,
)
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments

TASK = InventedDocuments(documents=10)
HOW = Measurement(limit=150)


def u_without_pine(method: str, at: int | None, documents: int) -> float:
    return 0.9 if method == "pine" or at in (0, documents - 1) else 0.4


def test_looks_grow_and_their_errors_add_up() -> None:
    assert [count for count, _ in looks(100)] == [20, 28, 40, 56, 100]
    for questions in (20, 25, 40, 100, 3000):
        assert looks(questions)[-1][0] == questions
        assert sum(1 - confidence for _, confidence in looks(questions)) == pytest.approx(0.05)
    assert looks(15) == ((15, 0.95),)


def scores(*chances: float, questions: int = 30, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((questions, len(chances))) < chances).astype(float)


@pytest.mark.parametrize(
    ("chances", "gap"),
    [((0.9, 0.2, 0.9), True), ((0.9, 0.65, 0.85), None), ((0.8,), False)],
)
def test_whether_positions_differ(chances: Sequence[float], gap: bool | None) -> None:
    base = scores(*chances)
    if len(chances) == 1:
        base = np.repeat(base, 3, axis=1)  # every question alike everywhere
    assert is_gap_found(base, 100, 0.99, resamples=1000) is gap


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"a": (0.9, 0.9, 0.9)}, set()),  # helps
        ({"a": (0.9, 0.1, 0.9)}, set()),  # makes it worse
        ({"a": (0.9, 0.45, 0.9)}, {"a"}),  # who knows
        ({"a": (0.9, 0.45, 0.9), "b": (0.9, 0.1, 0.9)}, {"a"}),
        ({"a": (0.9, 0.9, 0.9), "b": (0.9, 0.45, 0.9)}, set()),  # the best one is known
    ],
)
def test_methods_that_are_worth_asking(
    methods: Mapping[str, Sequence[float]], expected: set[str]
) -> None:
    by_label = {"none": scores(0.9, 0.25, 0.9)}
    by_label |= {label: scores(*own, seed=1) for label, own in methods.items()}
    scored = metric("answer_stated")
    assert worth_asking(by_label, scored, 100, 0.99, resamples=1000) == expected


def drawn(
    all_scores: Mapping[str, np.ndarray], methods: Sequence[str], questions: int
) -> tuple[dict[str, int], list[tuple[int, tuple[str, ...]]]]:
    """What is left out, and what was asked look by look."""
    asked: list[tuple[int, tuple[str, ...]]] = []

    def ask(
        count: int, labels: Sequence[str], confidence: float, left_out: Mapping[str, int]
    ) -> Mapping[str, np.ndarray]:
        asked.append((count, tuple(labels)))
        return {label: all_scores[label][:count] for label in ("none", *labels)}

    scored = metric("answer_stated")
    return ask_until_decided(ask, methods, questions, scored, resamples=1000), asked


def test_methods_are_asked_where_positions_differ_and_only_while_they_may_help() -> None:
    alike = np.repeat(scores(0.8, questions=100), 3, axis=1)
    left_out, asked = drawn({"none": alike, "a": alike}, ["a"], 100)
    assert asked == [(20, ())]
    assert left_out == {"a": 0}
    by_label = {
        "none": scores(0.9, 0.3, 0.9, questions=300),
        "worse": scores(0.9, 0.05, 0.9, questions=300, seed=1),
        "perhaps": scores(0.9, 0.42, 0.9, questions=300, seed=2),
    }
    left_out, asked = drawn(by_label, ["worse", "perhaps"], 300)
    assert asked[:2] == [(20, ()), (20, ("worse", "perhaps"))]
    assert asked[2] == (28, ("perhaps",))
    assert left_out == {"worse": 20}
    assert asked[-1][0] > 28


def test_a_plain_case_stops_with_the_first_questions(model: RagMiddleModel, tmp_path: Path) -> None:
    fake = fake_reader(model, TASK, u_without_pine)
    records = tmp_path / "records.jsonl"
    early = run_until_decided(fake, TASK, ["pine"], HOW, records=records)
    asked = len(early.items)
    assert asked < 60
    assert fake.asked == asked * 5 * 2
    assert early.confidence == dict(looks(150))[asked]
    assert early.left_out == {}
    # The same as asking for so many, apart from what looking costs.
    plain = run(fake_reader(model, TASK, u_without_pine), TASK, ["pine"], Measurement(limit=asked))
    assert np.array_equal(plain.scores("none"), early.scores("none"))
    wide, narrow = early.curves()["none"].gap, plain.curves()["none"].gap
    assert wide.value == narrow.value
    assert wide.high - wide.low > narrow.high - narrow.low
    # A run in full goes on from there.
    run(fake, TASK, ["pine"], HOW, records=records)
    assert fake.asked == 150 * 5 * 2


def test_a_method_that_makes_it_worse_is_left_out_and_a_second_run_asks_nothing(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    def chance(method: str, at: int | None, documents: int) -> float:
        if at in (0, documents - 1):
            return 0.9
        return {"siw": 0.0, "pine": 0.5}.get(method, 0.3)

    fake = fake_reader(model, TASK, chance)
    records, methods = tmp_path / "records.jsonl", ["siw", "pine"]
    steps: list[tuple[int, int]] = []
    results = run_until_decided(
        fake,
        TASK,
        methods,
        HOW,
        records=records,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert set(results.left_out) == {"siw"}
    assert [entry.label for entry in results.methods] == ["none", "pine"]
    assert results.compared == 2
    assert fake.asked == 5 * (2 * len(results.items) + results.left_out["siw"])
    assert steps[-1] == (fake.asked, 150 * 5 * 3)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    before = fake.asked
    again = run_until_decided(fake, TASK, methods, HOW, records=records)
    assert fake.asked == before
    assert again.left_out == results.left_out
    diagnosis = diagnose(fake, TASK, methods, HOW, records=records, stop_early=True, cost=False)
    assert fake.asked == before
    assert diagnosis.left_out["siw"].startswith("not asked beyond ")
    assert "for all 2 methods together" in diagnosis.comparisons


def test_without_a_gap_no_method_is_asked(model: RagMiddleModel) -> None:
    fake = fake_reader(model, TASK, lambda method, at, documents: 1.0)
    diagnosis = diagnose(fake, TASK, ["pine"], HOW, stop_early=True, cost=False)
    assert fake.asked == 20 * 5
    assert diagnosis.recommendation.reason == "no_gap"
    assert diagnosis.left_out["pine"].startswith("not asked, since ")


def test_a_method_that_the_model_cannot_take_is_refused_before_anything_is_asked(
    model: RagMiddleModel,
) -> None:
    fake = fake_reader(model, TASK, u_without_pine)
    with pytest.raises(UnknownNameError):
        run_until_decided(fake, TASK, ["no_such_method"], HOW)
    assert fake.asked == 0


def test_progress_and_estimate_are_of_all_questions(model: RagMiddleModel) -> None:
    steps: list[tuple[int, int]] = []
    told: list[int] = []
    run_until_decided(
        fake_reader(model, TASK, u_without_pine),
        TASK,
        ["pine"],
        HOW,
        progress=lambda done, total: steps.append((done, total)),
        estimated=lambda seconds, answers: told.append(answers),
    )
    assert {total for _, total in steps} == {150 * 5 * 2}
    assert len(told) == 2  # without the method, and with it
    assert 150 * 5 * 0.5 < told[0] <= 150 * 5
    assert told[0] / 2 < told[1] <= 150 * 5 * 2


def test_a_report_says_that_it_stopped_and_what_that_costs(model: RagMiddleModel) -> None:
    fake = fake_reader(model, TASK, u_without_pine)
    diagnosis = diagnose(fake, TASK, ["pine"], HOW, stop_early=True, cost=False)
    assert diagnosis.recommendation.label == "pine"
    assert any(note.startswith("Stopped after ") for note in diagnosis.notes)
    assert "all looks at the answers together" in diagnosis.comparisons
    in_full = diagnose(fake, TASK, ["pine"], HOW, cost=False)
    assert not any(note.startswith("Stopped after ") for note in in_full.notes)
    assert "looks" not in in_full.comparisons


def test_a_number_of_questions_is_needed(model: RagMiddleModel) -> None:
    with pytest.raises(EvaluationConfigError, match="give limit"):
        run_until_decided(
            fake_reader(model, TASK, u_without_pine), TASK, (), replace(HOW, limit=None)
        )
