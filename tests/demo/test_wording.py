"""The sentences follow from the figures."""

from __future__ import annotations

import pytest

from rag_middle.demo import findings
from rag_middle.demo.wording import how_measured, in_percent, with_interval
from rag_middle.evaluation import Estimate
from tests.demo.conftest import MakeShown


def test_a_method_that_helps_is_said_to_help(make_shown: MakeShown) -> None:
    unmodified, pine, _ = findings(make_shown({"none": [0.4, 0.9, 0.9], "pine": [0.9, 0.9, 0.9]}))
    assert unmodified == (
        "Unmodified, a model is right in 90 % of cases with the answering page at places 3, 5, and "
        "in 40 % at place 1. Chance does not explain that."
    )
    assert pine.startswith("pine raises the mean over the places from 73 % to 90 % (+17 [")
    assert "The worst place goes from 40 % to 90 % (+50 [" in pine
    assert pine.endswith("are 0 points apart, no more than chance explains.")


def test_a_method_that_hurts_is_said_to_hurt(make_shown: MakeShown) -> None:
    _, method, _ = findings(make_shown({"none": [0.9, 0.9, 0.9], "ms_poe": [0.2, 0.9, 0.9]}))
    assert method.startswith("ms_poe hurts here: the mean over the places falls from 90 % to 67 %")
    assert "The worst place goes from 90 % to 20 % (−70 [" in method
    assert method.endswith("are 70 points apart.")
    assert "which chance explains" not in method


def test_a_method_that_changes_nothing_is_not_praised(make_shown: MakeShown) -> None:
    unmodified, method, _ = findings(
        make_shown({"none": [0.9, 0.9, 0.9], "pine": [0.9, 0.9, 0.91]})
    )
    assert unmodified == "Unmodified, a model is right in 90 % of cases at every place."
    assert method.startswith("pine takes the mean over the places from 90 % to 90 % (")
    assert "a difference that chance explains. The worst place" in method
    assert "raises" not in method
    assert "which chance explains. Its best and worst place are 1 point apart, no" in method


def test_few_questions_support_no_comparison(make_shown: MakeShown) -> None:
    shown = make_shown({"none": [0.5, 1, 1], "pine": [1, 1, 1]}, questions=4)
    unmodified, pine, _ = findings(shown)
    assert "Chance explains a difference of that size." in unmodified
    assert pine == "pine takes the mean from 83 % to 100 %; too few questions to say more."


def test_answers_that_stay_are_counted(make_shown: MakeShown) -> None:
    replies = {"none": ("yes", "no", "yes", "no"), "pine": ("no", "no", " no", "no")}
    shown = make_shown({"none": [1, 1, 1], "pine": [1, 1, 1]}, replies=replies)
    assert findings(shown)[-1].endswith("with the same answer in every order: none 0, pine 1.")


def test_how_it_was_measured_names_what_was_left_out(make_shown: MakeShown) -> None:
    told = " ".join(
        how_measured(make_shown({"none": [1, 1, 1]}, left_out={"ms_poe": "no RoPE"}, missed=3))
    )
    assert "3 further questions were left out" in told
    assert "ms_poe was left out: no RoPE" in told
    assert "would be right in 25 % of cases" in told
    none_missed = " ".join(how_measured(make_shown({"none": [1, 1, 1]}, missed=0)))
    assert "no question had to be left out" in none_missed


@pytest.mark.parametrize(
    ("share", "shown"), [(0, "0 %"), (0.004, "0.4 %"), (0.0996, "10 %"), (0.816, "82 %")]
)
def test_shares_in_percent(share: float, shown: str) -> None:
    assert in_percent(share) == shown


def test_intervals_in_points() -> None:
    assert with_interval(Estimate(0.5, 0.4, 0.6)) == "50 [40, 60]"
    assert with_interval(Estimate(0.05, -0.001, 0.6), signed=True) == "+5 [0, +60]"
    assert with_interval(Estimate(-0.05, -0.2, 0.002), signed=True) == "−5 [−20, 0]"
