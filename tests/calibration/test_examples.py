"""How many examples each place gets, and what tells two sets apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from rag_middle.calibration import Example, allotted, digest
from rag_middle.errors import CalibrationConfigError


def test_places_get_their_share() -> None:
    order = allotted(200, {0: 0.2, 4: 0.3, 9: 0.5})
    assert Counter(order) == {0: 40, 4: 60, 9: 100}


def test_the_first_examples_are_spread_like_all() -> None:
    order = allotted(200, {0: 0.2, 4: 0.3, 9: 0.5})
    assert Counter(order[:20]) == {0: 4, 4: 6, 9: 10}


def test_a_place_without_weight_gets_none() -> None:
    assert set(allotted(10, {0: 1, 4: 0, 9: 1})) == {0, 9}


@pytest.mark.parametrize(
    ("count", "weights", "told"),
    [
        (10, {0: -1.0, 1: 2.0}, "not all 0"),
        (10, {0: 0.0}, "not all 0"),
        (10, {}, "not all 0"),
        (2, {0: 1.0, 1: 1.0, 2: 1.0}, "too few for 3 places"),
    ],
)
def test_weights_that_make_no_sense_are_refused(
    count: int, weights: dict[int, float], told: str
) -> None:
    with pytest.raises(CalibrationConfigError, match=told):
        allotted(count, weights)


def test_any_change_changes_the_digest(examples: Callable[..., list[Example]]) -> None:
    made = examples(3)
    before = digest(made)
    assert digest(list(made)) == before
    assert digest(made[::-1]) != before
    assert digest([*made[:2], replace(made[2], answer="x")]) != before
    assert digest([*made[:2], replace(made[2], prompt=made[0].prompt)]) != before
