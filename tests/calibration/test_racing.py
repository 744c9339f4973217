"""Giving up on candidates: never wrongly where it is certain, rarely where it is not."""

from __future__ import annotations

import random
from itertools import pairwise, product
from math import comb, prod

import pytest

from rag_middle.calibration import ScoringScheme
from rag_middle.calibration.racing import UNSCORED, Race, tail_probability
from rag_middle.errors import ConfigError


def tried(verdicts: str, count: int, order: tuple[int, ...] | None = None) -> str:
    """The verdicts on the first `count` examples in that order."""
    earlier = set((order or tuple(range(len(verdicts))))[:count])
    return "".join(verdict if i in earlier else UNSCORED for i, verdict in enumerate(verdicts))


QUESTIONS: list[list[list[tuple[float, int]]]] = [
    [[(0.5, 1)], [(0.5, 1)], [(0.5, 1)]],
    [[(0.1, 1)], [(0.9, 3)], [(0.3, 1)], [(0.7, 2)]],
    [[(0.2, 2), (0.6, 3), (0.6, 5)], [(0.4, 3)], [(0.9, 5), (0.1, 2)]],
    [[(0.2, 1)]],
    [],
]


@pytest.mark.parametrize("questions", QUESTIONS)
def test_the_tail_probability_a_sum_is_that_of_all_its_combinations(
    questions: list[list[tuple[float, int]]],
) -> None:
    """One number from 0 to 1 is drawn per question; prompts with a larger chance are answered."""

    def gains(prompts: list[tuple[float, int]]) -> list[tuple[float, int]]:
        steps = [0.0, *sorted({chance for chance, _ in prompts}), 1.0]
        return [
            (high - low, sum(weight for chance, weight in prompts if chance >= high))
            for low, high in pairwise(steps)
        ]

    for wanted in range(sum(weight for prompts in questions for _, weight in prompts) + 2):
        expected = sum(
            prod(chance for chance, _ in drawn)
            for drawn in product(*map(gains, questions))
            if sum(gain for _, gain in drawn) >= wanted
        )
        assert tail_probability(wanted, questions) == pytest.approx(expected, abs=1e-12)


def test_the_tail_probability_equally_likely_events_is_binomial() -> None:
    tail = sum(comb(100, k) * 0.25**k * 0.75 ** (100 - k) for k in range(30, 101))
    assert tail_probability(30, [[(0.25, 1)]] * 100) == pytest.approx(tail, rel=1e-9)


def test_who_cannot_catch_up_is_dropped_whatever_the_risk() -> None:
    race = Race(reference="1" * 8 + "00", risk=0.0)
    assert race.is_lost(tried("0" * 10, 3))  # three behind, and two left to gain
    assert not race.is_lost(tried("0" * 10, 2))


def test_without_risk_a_chance_too_small_for_a_float_still_counts() -> None:
    reference = "1" * 290 + "0" * 300
    race = Race(reference=reference, earlier=(reference,) * 36, risk=0.0)
    assert tail_probability(290, [[(1 / 38, 1)]] * 300) == 0.0
    assert not race.is_lost(tried("0" * 590, 290))


def test_verdicts_on_other_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="the reference has 3, an earlier candidate 2"):
        Race(reference="101", earlier=("111", "10"))


def test_equals_and_better_ones_go_on() -> None:
    race = Race(reference="10" * 20, earlier=("10" * 20,) * 9)
    assert not race.is_lost(tried("10" * 20, 10))
    assert not race.is_lost(tried("11" * 20, 10))


def test_a_clear_loser_is_dropped_before_it_is_certain() -> None:
    # The reference is wrong at the end, where nobody was right so far: little to gain there.
    reference = "1" * 30 + "0" * 10
    earlier = (reference,) * 30
    right = tried("0" * 40, 5)
    assert not Race(reference=reference, earlier=earlier, risk=0.0).is_lost(right)
    assert Race(reference=reference, earlier=earlier, risk=0.05).is_lost(right)
    assert not Race(reference=reference, risk=0.05).is_lost(right)  # nothing is known: it may be


def test_examples_on_which_candidates_differ_come_first() -> None:
    race = Race(reference="11100", earlier=("11100", "11010", "11010", "11011"))
    assert race.probabilities == pytest.approx((5 / 6, 5 / 6, 2 / 6, 4 / 6, 2 / 6))
    assert race.order == (2, 3, 4, 0, 1)
    assert Race(reference="101").order == (0, 1, 2)


def test_the_positions_of_a_question_are_scored_together_and_count_by_weight() -> None:
    scheme = ScoringScheme(questions=(0, 0, 1, 1, 2, 2), weights=(2, 5, 2, 5, 2, 5))
    # On question 0 all agree, on 1 about the heavy place, on 2 about neither.
    earlier = ("110101", "110010", "110111", "110000")
    race = Race(reference="110101", earlier=earlier, scheme=scheme)
    assert race.order == (4, 5, 2, 3, 0, 1)
    assert race.expected_score("11--01") == pytest.approx((2 + 5 + 2 * 1 / 6 + 5 * 3 / 6 + 5) / 21)
    # A heavy place was lost. Another heavy one can make up for it, a light one cannot.
    assert not Race(reference="010011", scheme=scheme, risk=0.0).is_lost("000---")
    assert Race(reference="010101", scheme=scheme, risk=0.0).is_lost("000---")


def test_a_scheme_for_other_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match="the scoring scheme 2"):
        Race(reference="101", scheme=ScoringScheme.of_single_prompts(2))


def test_what_was_not_tried_is_expected_as_it_was_known() -> None:
    race = Race(reference="1100", earlier=("1100", "1000"))
    assert race.expected_score("1---") == pytest.approx((1 + 2 / 4 + 1 / 4 + 1 / 4) / 4)
    assert race.expected_score("1010") == 0.5


@pytest.mark.parametrize("batch", [pytest.param(2, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("spread", [0.05, 0.5])
@pytest.mark.parametrize("places", [1, 3])
def test_drops_are_as_rarely_wrong_as_promised(places: int, spread: float, batch: int) -> None:
    """Candidates that answer each prompt with a chance of its own, as those before them.

    Who answers a question at one place answers it at those where it is likelier, too.
    """
    rng = random.Random(f"{spread} {batch}")
    count, wrong, drops = 80 // places, 0, 0
    weights = (2, 3, 5)[:places] * count
    questions = tuple(index // places for index in range(count * places))
    scheme = ScoringScheme(questions=questions, weights=weights)

    def score(right: str) -> int:
        return sum(weight for weight, verdict in zip(weights, right, strict=True) if verdict == "1")

    for _ in range(12 // places):
        chances = [[rng.betavariate(spread, spread) for _ in range(places)] for _ in range(count)]

        def candidate(chances: list[list[float]] = chances) -> str:
            drawn = [(rng.random(), question) for question in chances]
            return "".join("1" if luck < p else "0" for luck, question in drawn for p in question)

        earlier = sorted((candidate() for _ in range(36)), key=lambda right: -score(right))
        race = Race(reference=earlier[11], earlier=tuple(earlier), risk=0.05, scheme=scheme)
        for _ in range(40):
            right = candidate()
            stops = range(batch, count * places, batch)
            if any(race.is_lost(tried(right, stop, race.order)) for stop in stops):
                drops += 1
                wrong += score(right) >= score(race.reference)
    assert drops > 50 // places
    assert wrong / drops <= 0.05
