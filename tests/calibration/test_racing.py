"""Giving up on candidates: never wrongly where it is certain, rarely where it is not."""

from __future__ import annotations

import random
from itertools import product
from math import comb, prod

import pytest

from rag_middle.calibration.racing import UNSCORED, Race, chance_of
from rag_middle.errors import CalibrationConfigError


def tried(verdicts: str, count: int, order: tuple[int, ...] | None = None) -> str:
    """The verdicts on the first `count` examples in that order."""
    known = set((order or tuple(range(len(verdicts))))[:count])
    return "".join(each if i in known else UNSCORED for i, each in enumerate(verdicts))


@pytest.mark.parametrize("chances", [(0.5, 0.5, 0.5), (0.1, 0.9, 0.3, 0.7), (0.2,), ()])
def test_the_chance_of_several_events_is_that_of_all_their_combinations(
    chances: tuple[float, ...],
) -> None:
    for wanted in range(len(chances) + 2):
        expected = sum(
            prod(p if happens else 1 - p for happens, p in zip(events, chances, strict=True))
            for events in product((False, True), repeat=len(chances))
            if sum(events) >= wanted
        )
        assert chance_of(wanted, chances) == pytest.approx(expected, abs=1e-12)


def test_the_chance_of_equally_likely_events_is_binomial() -> None:
    tail = sum(comb(100, k) * 0.25**k * 0.75 ** (100 - k) for k in range(30, 101))
    assert chance_of(30, [0.25] * 100) == pytest.approx(tail, rel=1e-9)


def test_who_cannot_catch_up_is_dropped_whatever_the_risk() -> None:
    race = Race(reference="1" * 8 + "00", risk=0.0)
    assert race.lost(tried("0" * 10, 3))  # three behind, and two left to gain
    assert not race.lost(tried("0" * 10, 2))


def test_without_risk_a_chance_too_small_for_a_float_still_counts() -> None:
    reference = "1" * 290 + "0" * 300
    race = Race(reference=reference, known=(reference,) * 36, risk=0.0)
    assert chance_of(290, [1 / 38] * 300) == 0.0
    assert not race.lost(tried("0" * 590, 290))


def test_verdicts_on_other_examples_are_refused() -> None:
    with pytest.raises(CalibrationConfigError, match="the reference has 3, a known candidate 2"):
        Race(reference="101", known=("111", "10"))


def test_equals_and_better_ones_go_on() -> None:
    race = Race(reference="10" * 20, known=("10" * 20,) * 9)
    assert not race.lost(tried("10" * 20, 10))
    assert not race.lost(tried("11" * 20, 10))


def test_a_clear_loser_is_dropped_before_it_is_certain() -> None:
    # The reference is wrong at the end, where nobody was right so far: little to gain there.
    reference = "1" * 30 + "0" * 10
    known = (reference,) * 30
    right = tried("0" * 40, 5)
    assert not Race(reference=reference, known=known, risk=0.0).lost(right)
    assert Race(reference=reference, known=known, risk=0.05).lost(right)
    assert not Race(reference=reference, risk=0.05).lost(right)  # nothing is known: it may be


def test_examples_on_which_candidates_differ_come_first() -> None:
    race = Race(reference="11100", known=("11100", "11010", "11010", "11011"))
    assert race.chances == pytest.approx((5 / 6, 5 / 6, 2 / 6, 4 / 6, 2 / 6))
    assert race.order == (2, 3, 4, 0, 1)
    assert Race(reference="101").order == (0, 1, 2)


def test_what_was_not_tried_is_expected_as_it_was_known() -> None:
    race = Race(reference="1100", known=("1100", "1000"))
    assert race.expected("1---") == pytest.approx((1 + 2 / 4 + 1 / 4 + 1 / 4) / 4)
    assert race.expected("1010") == 0.5


@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_drops_are_as_rarely_wrong_as_promised(spread: float, batch: int) -> None:
    """Candidates that answer each example with a chance of its own, as those before them."""
    rng = random.Random(f"{spread} {batch}")
    count, wrong, drops = 80, 0, 0
    for _ in range(30):
        chances = [rng.betavariate(spread, spread) for _ in range(count)]

        def candidate(chances: list[float] = chances) -> str:
            return "".join("1" if rng.random() < chance else "0" for chance in chances)

        known = sorted((candidate() for _ in range(36)), key=lambda each: -each.count("1"))
        race = Race(reference=known[11], known=tuple(known), risk=0.05)
        for _ in range(40):
            right = candidate()
            stops = range(batch, count, batch)
            if any(race.lost(tried(right, stop, race.order)) for stop in stops):
                drops += 1
                wrong += right.count("1") >= race.reference.count("1")
    assert drops > 200
    assert wrong / drops <= 0.05
