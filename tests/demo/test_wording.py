"""The sentences follow from the figures."""

from __future__ import annotations

import pytest

from rag_middle.demo import findings
from rag_middle.demo.wording import how_measured, in_percent
from tests.demo.conftest import Make


def test_a_method_that_helps_is_said_to_help(make: Make) -> None:
    unmodified, pine, _ = findings(make({"none": [0.4, 0.9, 0.9], "pine": [0.9, 0.9, 0.9]}))
    assert unmodified == (
        "Unmodified, a model is right in 90 % of cases with the gold document at positions 2, 4, "
        "and in 40 % at position 0: a difference that is statistically significant."
    )
    assert pine.startswith("PINE raises the mean over the positions from 73 % to 90 % (+17 [")
    assert "The worst position goes from 40 % to 90 % (+50 [" in pine
    assert pine.endswith(" Every question scores exactly the same at every position.")


def test_a_method_that_hurts_is_said_to_hurt(make: Make) -> None:
    _, method, _ = findings(make({"none": [0.9, 0.9, 0.9], "ms_poe": [0.2, 0.9, 0.9]}))
    assert method.startswith(
        "Ms-PoE hurts here: the mean over the positions falls from 90 % to 67 %"
    )
    assert "The worst position goes from 90 % to 20 % (−70 [" in method
    assert method.endswith("are 70 points apart.")
    assert "not significant" not in method


def test_a_method_that_changes_nothing_is_not_praised(
    make: Make,
) -> None:
    unmodified, method, _ = findings(make({"none": [0.9, 0.9, 0.9], "pine": [0.9, 0.9, 0.91]}))
    assert unmodified == "Unmodified, a model is right in 90 % of cases at every position."
    assert method.startswith("PINE takes the mean over the positions from 90 % to 90 % (")
    assert "points), which is not significant. The worst position" in method
    assert "raises" not in method
    assert "not significant. Its best and worst position are 1 point apart, which" in method


def test_differences_are_those_of_the_figures_shown(make: Make) -> None:
    _, method, _ = findings(make({"none": [0.8, 0.8, 0.81], "pine": [0.8, 0.81, 0.81]}))
    assert "from 80 % to 81 % (+1 [" in method
    _, method, _ = findings(make({"none": [0.09, 0.14, 0.14], "pine": [0.08, 0.08, 0.09]}))
    assert "from 13 % to 8.3 % (−4.7 [" in method


def test_few_questions_support_no_comparison(make: Make) -> None:
    shown = make({"none": [0.5, 1, 1], "pine": [1, 1, 1]}, questions=4)
    unmodified, pine, _ = findings(shown)
    assert unmodified.endswith("a difference that is not statistically significant.")
    assert pine == "PINE takes the mean from 83 % to 100 %; too few questions to say more."


def test_answers_that_stay_are_counted(make: Make) -> None:
    replies = {"none": ("yes", "no", "yes", "no"), "pine": ("no", "no", " no", "no")}
    shown = make({"none": [1, 1, 1], "pine": [1, 1, 1]}, replies=replies)
    assert findings(shown)[-1].endswith(
        "with the same answer in every order: Unmodified 0, PINE 1."
    )


def test_how_it_was_measured_names_what_was_left_out(make: Make) -> None:
    text = " ".join(
        how_measured(make({"none": [1, 1, 1]}, left_out={"ms_poe": "no RoPE"}, missed=3))
    )
    assert "3 further questions were left out" in text
    assert "Ms-PoE was left out: no RoPE" in text
    assert "would be right in 25 % of cases" in text
    none_missed = " ".join(how_measured(make({"none": [1, 1, 1]}, missed=0)))
    assert "no question had to be left out" in none_missed


@pytest.mark.parametrize(
    ("share", "shown"), [(0, "0 %"), (0.004, "0.4 %"), (0.0996, "10 %"), (0.816, "82 %")]
)
def test_shares_in_percent(share: float, shown: str) -> None:
    assert in_percent(share) == shown
