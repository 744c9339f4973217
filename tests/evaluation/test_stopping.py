"""Asking until the question is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation import InventedDocuments, Measurement, diagnose, run
from rag_middle.evaluation.metrics import metric
from rag_middle.evaluation.stopping import is_decided, looks, run_until_decided
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader

TASK = InventedDocuments(documents=10)
HOW = Measurement(limit=150)


def u_without_pine(method: str, at: int | None, documents: int) -> float:
    return 0.9 if method == "pine" or at in (0, documents - 1) else 0.4


def test_looks_grow_and_their_errors_add_up() -> None:
    assert [count for count, _ in looks(100)] == [20, 32, 52, 100]
    for questions in (20, 25, 40, 100, 3000):
        assert looks(questions)[-1][0] == questions
        assert sum(1 - confidence for _, confidence in looks(questions)) == pytest.approx(0.05)
    assert looks(15) == ((15, 0.95),)


def scores(*chances: float, questions: int = 30, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((questions, len(chances))) < chances).astype(float)


@pytest.mark.parametrize(
    ("none", "method", "decided"),
    [
        ((0.9, 0.2, 0.9), (0.9, 0.9, 0.9), True),  # lost, and helped
        ((0.9, 0.3, 0.9), (0.9, 0.1, 0.9), True),  # lost, and made worse
        ((0.8, 0.8, 0.8), (0.8, 0.8, 0.8), True),  # not lost
        ((0.9, 0.65, 0.85), (0.9, 0.8, 0.85), False),  # who knows
    ],
)
def test_what_is_plain_is_decided(
    none: Sequence[float], method: Sequence[float], decided: bool
) -> None:
    by_label = {"none": scores(*none), "a": scores(*method, seed=1)}
    if none == (0.8, 0.8, 0.8):
        by_label["none"] = np.repeat(scores(0.8), 3, axis=1)  # every question alike everywhere
    assert is_decided(by_label, metric("answer_stated"), 100, 0.99, resamples=1000) is decided


def test_a_plain_case_stops_with_the_first_questions(model: RagMiddleModel, tmp_path: Path) -> None:
    fake = fake_reader(model, TASK, u_without_pine)
    records = tmp_path / "records.jsonl"
    early = run_until_decided(fake, TASK, ["pine"], HOW, records=records)
    asked = len(early.items)
    assert asked < 60
    assert fake.asked == asked * 5 * 2
    assert early.confidence == dict(looks(150))[asked]
    # The same as asking for so many, apart from what looking costs.
    plain = run(fake_reader(model, TASK, u_without_pine), TASK, ["pine"], Measurement(limit=asked))
    assert np.array_equal(plain.scores("none"), early.scores("none"))
    wide, narrow = early.curves()["none"].gap, plain.curves()["none"].gap
    assert wide.value == narrow.value
    assert wide.high - wide.low > narrow.high - narrow.low
    # A run in full goes on from there.
    run(fake, TASK, ["pine"], HOW, records=records)
    assert fake.asked == 150 * 5 * 2


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
    assert len(told) == 1
    assert 150 * 5 * 2 * 0.5 < told[0] <= 150 * 5 * 2


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
