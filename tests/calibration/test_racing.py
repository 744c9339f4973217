"""Giving up on candidates: never wrongly where it is certain, rarely where it is not."""

from __future__ import annotations

import random

import pytest

from rag_middle.calibration.racing import Race, ended, sign_test


@pytest.mark.parametrize(
    ("better", "differing", "expected"), [(0, 1, 0.5), (0, 3, 0.125), (1, 3, 0.5), (2, 2, 1.0)]
)
def test_the_sign_test_is_a_fair_coin(better: int, differing: int, expected: float) -> None:
    assert sign_test(better, differing) == expected


def test_who_cannot_catch_up_is_dropped_whatever_the_risk() -> None:
    race = Race(reference="1" * 9 + "0", risk=0.0)
    assert ended(race, "00")  # 8 are left, 9 are needed
    assert not ended(race, "0")


def test_equals_and_better_ones_go_on() -> None:
    race = Race(reference="10" * 20)
    assert not ended(race, "10" * 5)
    assert not ended(race, "11" * 5)


def test_a_clear_loser_is_dropped_before_it_is_certain() -> None:
    race = Race(reference="1" * 40, risk=0.05)
    assert not ended(Race(reference="10" * 20, risk=0.0), "00" * 6)
    assert ended(Race(reference="10" * 20, risk=0.05), "00" * 6)
    assert ended(race, "0" * 8)


def test_looks_are_the_shares_and_the_end() -> None:
    race = Race(reference="1" * 200, shares=(0.125, 0.25, 0.5))
    assert race.stages(200) == (25, 50, 100, 200)
    assert race.stages(3) == (1, 2, 3)
    assert race.stages(1) == (1,)


@pytest.mark.parametrize("differing", [10, 40, 100])
def test_wrong_drops_are_as_rare_as_promised(differing: int) -> None:
    """The worst case: candidate and reference are equally good and differ in many examples."""
    rng = random.Random(differing)
    drops, rounds, count = 0, 2000, 200
    pairs = ["10"] * (differing // 2) + ["01"] * (differing // 2)
    pairs += ["11"] * ((count - len(pairs)) // 2)
    pairs += ["00"] * (count - len(pairs))
    for _ in range(rounds):
        rng.shuffle(pairs)
        race = Race(reference="".join(pair[0] for pair in pairs), risk=0.05)
        right = "".join(pair[1] for pair in pairs)
        drops += any(ended(race, right[:stop]) for stop in race.stages(count)[:-1])
    # The bound is 5 %; of 2000 rounds, chance alone stays within 1.5 points of it.
    assert drops / rounds <= 0.065
