"""What a diagnosis says about curves of every shape, and that it never contradicts its table."""

import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from rag_middle.evaluation import Bootstrap, conclusions
from rag_middle.evaluation.conclusions import loses_middle, next_steps, order_advice, recommend
from rag_middle.evaluation.metrics import METRICS
from rag_middle.evaluation.results import PositionCurves, curve_of
from rag_middle.evaluation.statistics import shape_of

ACCURACY = METRICS["best_subspan_em"]


def scores(per_cent: list[float], questions: int) -> np.ndarray:
    """0 and 1 with exactly these means, independent between positions."""
    columns = []
    for at, mean in enumerate(per_cent):
        right = np.arange(questions) < round(questions * mean / 100)
        columns.append(np.random.default_rng(at).permutation(right))
    return np.stack(columns, axis=1).astype(float)


def level(per_cent: float, positions: int, questions: int) -> np.ndarray:
    """Every question scores the same at every position."""
    return np.repeat(scores([per_cent], questions), positions, axis=1)


def curves_of(bootstrap: Bootstrap, positions: tuple[int, ...], questions: int) -> PositionCurves:
    return PositionCurves(
        metric=ACCURACY,
        positions=positions,
        documents=positions[-1] + 1,
        questions=questions,
        curves=(curve_of("none", bootstrap),),
    )


@dataclass(frozen=True)
class Case:
    """A curve of the unmodified model in per cent, and what should be said.

    `method` is the curve of the only other method; a number is a level one.
    """

    curve: list[float]
    says: str
    shape: str
    reason: str = "no_help"
    best: list[int] = field(default_factory=list)
    avoid: int | None = None
    method: list[float] | float | None = None
    questions: int = 300


CASES = [
    # The lost middle.
    Case([90, 50, 50, 50, 90], "yes", "U", best=[0, 4], avoid=1),
    Case([70, 40, 95], "yes", "U", best=[2], avoid=1),
    Case([90, 50, 50, 50, 90], "yes", "U", "helps", method=85),
    Case([90, 50, 50, 50, 90], "yes", "U", "helps", best=[4], avoid=0, method=[70, 75, 80, 85, 99]),
    Case([90, 50, 50, 50, 90], "yes", "U", method=[95, 20, 20, 20, 95], best=[0, 4], avoid=1),
    # The first positions lose.
    Case([46, 79, 67], "no", "primacy deficit", best=[1], avoid=0, questions=100),
    # The last positions win.
    Case([40, 45, 50, 60, 90], "no", "recency", best=[4], avoid=0),
    # The first positions win.
    Case([90, 60, 50, 45, 40], "no", "primacy", best=[0], avoid=4),
    Case([90, 40], "unknown", "primacy", best=[0], avoid=1),
    Case([76, 57, 54, 55, 63], "unknown", "primacy", best=[0], avoid=2, questions=100),
    # The last positions lose.
    Case([90, 90, 90, 90, 40], "no", "recency deficit", best=[0, 1, 2, 3], avoid=4),
    # The middle wins.
    Case([50, 90, 90, 90, 50], "no", "inverted U", best=[1, 2, 3], avoid=0),
    # Up and down.
    Case([90, 40, 90, 40, 90], "yes", "irregular", best=[0, 2, 4], avoid=1),
    # Level.
    Case([70, 70, 70, 70, 70], "no", "flat", "no_gap", questions=400),
    Case([70, 70, 70, 70, 70], "unknown", "flat", "no_gap", questions=200),
    Case([70, 72, 69, 71, 70], "no", "flat", "no_gap", method=95, questions=600),
    # Nothing can be said.
    Case([90, 40, 90], "unknown", "U", "too_few_questions", questions=15),
    Case([2, 0, 1], "unknown", "flat", "cannot_answer"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.curve}-{case.method}")
def test_what_is_said_of_a_curve(case: Case) -> None:
    base = scores(case.curve, case.questions)
    methods = {"none": base}
    if isinstance(case.method, list):
        # The method's answers to a question are independent of the unmodified model's.
        methods["a method"] = scores(case.method, case.questions)[::-1]
    else:
        constant = 30 if case.method is None else case.method
        methods["a method"] = level(constant, len(case.curve), case.questions)
    bootstrap = Bootstrap(base)
    shape = shape_of(bootstrap)
    positions = range(len(case.curve))
    recommendation = recommend(methods, ACCURACY)
    curves = curves_of(bootstrap, tuple(positions), case.questions)
    said = loses_middle(recommendation, shape, curves)
    in_use = curve_of("in use", Bootstrap(methods[recommendation.label]))
    advice = order_advice(in_use, positions, ACCURACY)
    steps = next_steps(recommendation, advice, calibratable=["lpes"])

    assert (said.label, shape.name, recommendation.reason) == (case.says, case.shape, case.reason)
    first_word = {"yes": "Yes:", "no": "No:", "unknown": "Cannot tell"}[case.says]
    assert said.text.startswith(first_word)
    [*ordering] = [step for step in steps if step.startswith("Put")]
    assert bool(ordering) == bool(case.best)
    if ordering:
        best, avoided = re.fullmatch(
            r"Put the most relevant documents at positions? ([\d, and]+) \(.*\), and none of them "
            r"at position (\d+) \(.*\): it costs nothing\.",
            ordering[0],
        ).groups()  # type: ignore[union-attr]
        assert [int(number) for number in re.findall(r"\d+", best)] == case.best
        assert int(avoided) == case.avoid
    assert (recommendation.label == "none") == (case.reason != "helps")


def test_nothing_is_to_be_calibrated_where_a_method_leaves_no_gap() -> None:
    base, able = scores([90, 50, 90], 200), ["lpes"]
    helps = recommend({"none": base, "pine": level(85, 3, 200)}, ACCURACY)
    assert helps.reason == "helps"
    assert not any("calibrate" in step for step in next_steps(helps, "", calibratable=able))
    assert any(
        "calibrate" in step for step in next_steps(helps, "Put them first.", calibratable=able)
    )


def drawn(*chances: float, questions: int = 200, seed: int = 0) -> np.ndarray:
    """0 and 1 with these chances at the positions; one seed gives paired questions."""
    drawn = np.random.default_rng(seed).random((questions, len(chances)))
    return (drawn < chances).astype(float)


U = drawn(0.9, 0.5, 0.5, 0.9)
BEST = drawn(0.85, 0.85, 0.85, 0.85)


def test_a_method_that_lowers_the_mean_is_not_recommended() -> None:
    level_and_low = drawn(0.66, 0.66, 0.66, 0.66)
    advice = recommend({"none": U, "pine": level_and_low}, ACCURACY)
    assert level_and_low.mean(axis=0).min() > U.mean(axis=0).min()
    assert (advice.label, advice.reason) == ("none", "no_help")
    assert advice.verdicts[0].mean_difference.value < 0


def test_of_two_as_good_the_cheaper_wins() -> None:
    nearly = BEST.copy()
    nearly[:1] = 1 - nearly[:1]  # one question in 200: half a point
    assert abs(nearly.mean(axis=0) - BEST.mean(axis=0)).max() <= 0.01
    ways = {"none": U, "a": BEST, "b": nearly}
    assert recommend(ways, ACCURACY, {"a": 3.0, "b": 1.1}).label == "b"
    assert recommend(ways, ACCURACY, {"a": 1.1, "b": 3.0}).label == "a"
    assert "not cheaper: b" in recommend(ways, ACCURACY, {"a": 1.1, "b": 3.0}).text


def test_methods_that_do_nothing_are_hardly_ever_recommended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conclusions, "Bootstrap", partial(Bootstrap, resamples=800))
    trials, wrong = 60, 0
    for seed in range(trials):
        base = drawn(0.9, 0.6, 0.6, 0.9, questions=80, seed=seed)
        others = {
            f"m{i}": drawn(0.9, 0.6, 0.6, 0.9, questions=80, seed=1000 * (i + 1) + seed)
            for i in range(4)
        }
        advice = recommend({"none": base, **others}, ACCURACY)
        wrong += advice.label != "none"
    # Promised: at most 2.5 % (one side of 95 %); three standard deviations are added.
    assert wrong <= 0.025 * trials + 3 * (0.025 * 0.975 * trials) ** 0.5


def test_likelihoods_are_compared_too() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal([-2.0, -5.0, -2.0], 1.0, size=(100, 3))
    better = base + np.array([0.0, 2.0, 0.0])
    advice = recommend({"none": base, "pine": better}, METRICS["log_likelihood"])
    assert advice.label == "pine"
    assert advice.verdicts[0].worst_difference.value == pytest.approx(2.0, abs=0.5)


def test_a_difference_that_matters_is_excluded_or_its_questions_are_counted() -> None:
    few = recommend({"none": np.ones((20, 5))}, ACCURACY).text
    assert few.endswith("up to 13.9 points is possible. About 39 questions would tell.")
    enough = recommend({"none": np.ones((100, 5))}, ACCURACY).text
    assert enough == "No method needed: no two positions differ by 10.0 points."
    alike = recommend({"none": np.full((20, 5), -1.0)}, METRICS["log_likelihood"]).text
    assert alike == "No method needed: no two positions differ by 0.41 nats."
