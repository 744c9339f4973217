"""What counts as better on held-out prompts."""

from __future__ import annotations

import pytest

from rag_middle.calibration import Example, Outcome
from rag_middle.calibration.result import HeldOutCheck, check_held_out
from rag_middle.documents import ContextPrompt

PROMPT = ContextPrompt("", ["a"], "b")


def check(before: list[str], after: list[str]) -> HeldOutCheck:
    """One string per question, with its verdict at every position."""
    examples = [
        Example(question=f"{question:03}", position=position, prompt=PROMPT, answer="x")
        for question in range(len(before))
        for position in range(len(before[0]))
    ]
    outcomes = [Outcome(score=0, right="".join(verdicts)) for verdicts in (before, after)]
    return check_held_out(examples, *outcomes)


def test_a_gain_at_the_worst_position_is_an_improvement() -> None:
    result = check(["101"] * 60 + ["111"] * 40, ["101"] * 20 + ["111"] * 80)
    assert [row["before"]["value"] for row in result.scores["places"]] == [1.0, 0.4, 1.0]
    assert result.scores["gain_of_worst_place"]["value"] == pytest.approx(0.4)
    assert result.improves
    assert "at the worst position improves" in result.verdict


def test_no_change_is_none() -> None:
    result = check(["101", "011"] * 20, ["101", "011"] * 20)
    assert result.scores["gain_of_worst_place"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert not result.improves
    assert "not statistically significant" in result.verdict


def test_a_gain_that_is_not_significant_is_no_improvement() -> None:
    result = check(["0"] * 19 + ["1"], ["0"] * 18 + ["1"] * 2)
    assert result.scores["gain_of_worst_place"]["value"] == pytest.approx(0.05)
    assert not result.improves
    assert "more held-out questions" in result.verdict


def test_a_significant_loss_is_reported_as_one() -> None:
    result = check(["1"] * 100, ["0"] * 30 + ["1"] * 70)
    assert not result.improves
    assert (
        "is worse than that of the unmodified model: worst position −30.0 points" in result.verdict
    )


def test_a_gain_elsewhere_does_not_count() -> None:
    result = check(["10"] * 50, ["00"] * 25 + ["10"] * 25)
    assert result.scores["gain_of_mean"]["high"] < 0
    assert not result.improves


def test_a_gain_at_the_worst_position_that_the_others_pay_for_is_none() -> None:
    result = check(["101"] * 90 + ["111"] * 10, ["010"] * 50 + ["101"] * 50)
    assert result.scores["gain_of_worst_place"]["low"] > 0
    assert result.scores["gain_of_mean"]["value"] < 0
    assert not result.improves
    assert "but the mean over positions falls: −" in result.verdict


def test_the_interval_has_the_width_of_the_binomial() -> None:
    result = check(["1"] * 200 + ["0"] * 200, ["1"] * 400)
    gain = result.scores["gain_of_worst_place"]
    # sqrt(0.5 * 0.5 / 400) = 0.025; bootstrapped with 10,000 draws.
    assert gain["high"] - gain["low"] == pytest.approx(2 * 1.96 * 0.025, abs=0.008)
