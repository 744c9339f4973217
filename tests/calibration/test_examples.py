"""How many examples each place gets, and what tells two sets apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from rag_middle.calibration import Example, allotted, digest, draw_examples
from rag_middle.errors import CalibrationConfigError
from rag_middle.evaluation import InventedDocuments


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


def test_examples_of_a_task_are_placed_by_weight_and_held_out_ones_everywhere() -> None:
    task = InventedDocuments(documents=5)
    searched, held_out = draw_examples(task, questions=10, held_out=2)
    assert Counter(each.place for each in searched) == {0: 2, 2: 3, 4: 5}
    assert Counter(each.place for each in held_out) == dict.fromkeys(range(5), 2)
    assert not {each.question for each in searched} & {each.question for each in held_out}
    assert all(each.answer.startswith(" ") for each in searched)
    assert draw_examples(task, questions=10, held_out=2) == (searched, held_out)


def test_tasks_without_gold_documents_give_no_examples() -> None:
    class NoGold(InventedDocuments):
        places = 0  # type: ignore[assignment]

    with pytest.raises(CalibrationConfigError, match="cannot be calibrated on"):
        draw_examples(NoGold(), questions=10, held_out=2)
