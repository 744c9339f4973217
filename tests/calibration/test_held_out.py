"""What counts as better on held-out prompts."""

from __future__ import annotations

import pytest

from rag_middle.calibration import Example, HeldOutCheck, Outcome, check_held_out
from rag_middle.documents import ContextPrompt

PROMPT = ContextPrompt("", ["a"], "b")


def check(before: list[str], after: list[str]) -> HeldOutCheck:
    """One string per question, with its verdict at each place."""
    examples = [
        Example(question=f"{question:03}", position=position, prompt=PROMPT, answer="x")
        for question in range(len(before))
        for position in range(len(before[0]))
    ]
    outcomes = [Outcome(score=0, right="".join(each)) for each in (before, after)]
    return check_held_out(examples, *outcomes)


def test_a_raised_worst_place_is_an_improvement() -> None:
    found = check(["101"] * 60 + ["111"] * 40, ["101"] * 20 + ["111"] * 80)
    assert [place["before"]["value"] for place in found.scores["places"]] == [1.0, 0.4, 1.0]
    assert found.scores["gain_of_worst_place"]["value"] == pytest.approx(0.4)
    assert found.improves
    assert "at the worst position improves" in found.verdict


def test_no_change_is_none() -> None:
    found = check(["101", "011"] * 20, ["101", "011"] * 20)
    assert found.scores["gain_of_worst_place"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert not found.improves
    assert "not statistically significant" in found.verdict


def test_a_gain_that_chance_explains_is_none() -> None:
    found = check(["0"] * 19 + ["1"], ["0"] * 18 + ["1"] * 2)
    assert found.scores["gain_of_worst_place"]["value"] == pytest.approx(0.05)
    assert not found.improves
    assert "more held-out questions" in found.verdict


def test_a_loss_beyond_chance_is_called_one() -> None:
    found = check(["1"] * 100, ["0"] * 30 + ["1"] * 70)
    assert not found.improves
    assert "is worse than that of the unmodified model: worst position -30.0%" in found.verdict


def test_a_gain_elsewhere_does_not_count() -> None:
    found = check(["10"] * 50, ["00"] * 25 + ["10"] * 25)
    assert found.scores["gain_of_mean"]["high"] < 0
    assert not found.improves


def test_the_interval_has_the_width_of_the_binomial() -> None:
    found = check(["1"] * 200 + ["0"] * 200, ["1"] * 400)
    gain = found.scores["gain_of_worst_place"]
    # sqrt(0.5 * 0.5 / 400) = 0.025; bootstrapped with 10,000 draws.
    assert gain["high"] - gain["low"] == pytest.approx(2 * 1.96 * 0.025, abs=0.008)
