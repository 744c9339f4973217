"""What is recommended, on made-up scores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from rag_middle.evaluation.conclusions import recommend
from rag_middle.evaluation.metrics import METRICS

ACCURACY = METRICS["best_subspan_em"]


def scores(*chances: float, questions: int = 200, seed: int = 0) -> np.ndarray:
    """0 and 1 with these chances at the positions; one seed gives paired questions."""
    drawn = np.random.default_rng(seed).random((questions, len(chances)))
    return (drawn < chances).astype(float)


U = scores(0.9, 0.5, 0.5, 0.9)
LEVEL = scores(0.85, 0.85, 0.85, 0.85)


def test_a_method_that_lifts_the_middle_is_recommended() -> None:
    advice = recommend({"none": U, "pine": LEVEL}, ACCURACY, {"none": 1.0, "pine": 2.0})
    assert (advice.label, advice.reason) == ("pine", "helps")
    assert "2 times as long" in advice.text
    [verdict] = advice.verdicts
    assert verdict.worst_difference.low > 0
    assert verdict.mean_difference.value > 0


def test_no_method_is_needed_where_the_curve_is_flat() -> None:
    level, better = (scores(*4 * [chance], questions=800) for chance in (0.85, 0.95))
    advice = recommend({"none": level, "pine": better}, ACCURACY)
    assert (advice.label, advice.reason) == ("none", "no_gap")
    assert "No method needed" in advice.text


def test_a_method_that_lowers_the_mean_is_not_recommended() -> None:
    level_and_low = scores(0.66, 0.66, 0.66, 0.66)
    advice = recommend({"none": U, "pine": level_and_low}, ACCURACY)
    assert level_and_low.mean(axis=0).min() > U.mean(axis=0).min()
    assert (advice.label, advice.reason) == ("none", "no_help")
    assert "the mean falls" in advice.verdicts[0].why


def test_a_gain_that_may_be_chance_is_not_recommended() -> None:
    hardly = U.copy()
    hardly[:3, 1:3] = 1.0
    advice = recommend({"none": U, "pine": hardly}, ACCURACY)
    assert (advice.label, advice.reason) == ("none", "no_help")


def test_of_two_that_help_the_better_worst_place_wins() -> None:
    fair = scores(0.9, 0.7, 0.7, 0.9)
    advice = recommend({"none": U, "a": fair, "b": LEVEL}, ACCURACY, {"a": 1.0, "b": 5.0})
    assert advice.label == "b"


def test_of_two_as_good_the_cheaper_wins() -> None:
    nearly = LEVEL.copy()
    nearly[:1] = 1 - nearly[:1]  # one question in 200: half a point
    assert abs(nearly.mean(axis=0) - LEVEL.mean(axis=0)).max() <= 0.01
    ways = {"none": U, "a": LEVEL, "b": nearly}
    assert recommend(ways, ACCURACY, {"a": 3.0, "b": 1.1}).label == "b"
    assert recommend(ways, ACCURACY, {"a": 1.1, "b": 3.0}).label == "a"
    assert "not cheaper: b" in recommend(ways, ACCURACY, {"a": 1.1, "b": 3.0}).text


def test_trying_many_methods_asks_more_of_each() -> None:
    one = recommend({"none": U, "a": LEVEL}, ACCURACY).verdicts[0].worst_difference
    many = {"none": U, **{f"m{i}": LEVEL for i in range(8)}}
    of_eight = recommend(many, ACCURACY).verdicts[0].worst_difference
    assert of_eight.high - of_eight.low > one.high - one.low


def test_methods_that_do_nothing_are_hardly_ever_recommended() -> None:
    trials, wrong = 60, 0
    for seed in range(trials):
        base = scores(0.9, 0.6, 0.6, 0.9, questions=80, seed=seed)
        others = {
            f"m{i}": scores(0.9, 0.6, 0.6, 0.9, questions=80, seed=1000 * (i + 1) + seed)
            for i in range(4)
        }
        advice = recommend({"none": base, **others}, ACCURACY, resamples=800)
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
