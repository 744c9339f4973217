"""What counts as better on held-out prompts."""

import re

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


@pytest.mark.parametrize(
    ("before", "after", "worst", "mean", "verdict"),
    [
        (["101"] * 60 + ["111"] * 40, ["101"] * 20 + ["111"] * 80, 0.4, 0.4 / 3, "improves: "),
        (["101", "011"] * 20, ["101", "011"] * 20, 0.0, 0.0, "not statistically significant"),
        (["0"] * 19 + ["1"], ["0"] * 18 + ["1"] * 2, 0.05, 0.05, "more held-out questions"),
        (["1"] * 100, ["0"] * 30 + ["1"] * 70, -0.3, -0.3, "worse than .* position −30.0 points"),
        # A loss elsewhere counts, a gain elsewhere does not.
        (["10"] * 50, ["00"] * 25 + ["10"] * 25, 0.0, -0.25, "not recommended"),
        (["101"] * 90 + ["111"] * 10, ["010"] * 50 + ["101"] * 50, 0.4, -0.2, "mean .* falls: −"),
    ],
)
def test_the_worst_position_has_to_gain_and_the_mean_not_to_fall(
    before: list[str], after: list[str], worst: float, mean: float, verdict: str
) -> None:
    result = check(before, after)
    assert result.scores["gain_of_worst_place"]["value"] == pytest.approx(worst)
    assert result.scores["gain_of_mean"]["value"] == pytest.approx(mean)
    assert result.improves == (verdict == "improves: ")
    assert re.search(verdict, result.verdict)
    firsts = [sum(v[0] == "1" for v in verdicts) / len(before) for verdicts in (before, after)]
    [place, *_] = result.scores["places"]
    assert [place[when]["value"] for when in ("before", "after")] == pytest.approx(firsts)


def test_the_interval_has_the_width_of_the_binomial() -> None:
    result = check(["1"] * 200 + ["0"] * 200, ["1"] * 400)
    gain = result.scores["gain_of_worst_place"]
    # sqrt(0.5 * 0.5 / 400) = 0.025; bootstrapped with 10,000 draws.
    assert gain["high"] - gain["low"] == pytest.approx(2 * 1.96 * 0.025, abs=0.008)
