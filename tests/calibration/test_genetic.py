"""The genetic search for a curve, on fitness functions that cost nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import pytest

from rag_middle.calibration import CurveSearch, Outcome
from rag_middle.calibration.curves import Genome, children, mutant
from rag_middle.calibration.search import Candidate, drive
from rag_middle.methods import LPES
from tests.reference import lpes_search as naive

LAYERS = 32
SMALL: dict[str, Any] = {"population": 8, "parents": 4, "mutants": 4, "crossovers": 2}


def genome_of(candidate: Candidate) -> Genome:
    return tuple((x, round(10 * y)) for x, y in candidate.details["control_points"])


class Landscape:
    """Fitness by distance from a target curve; keeps what it was asked."""

    def __init__(self, target: float = 1.1) -> None:
        self.target = target
        self.asked: list[Candidate] = []

    def __call__(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        self.asked += candidates
        return [self.outcome(candidate) for candidate in candidates]

    def outcome(self, candidate: Candidate) -> Outcome:
        assert isinstance(candidate.method, LPES)
        factors = candidate.method.factors
        assert isinstance(factors, tuple)
        distance = sum(abs(factor - self.target) for factor in factors) / LAYERS
        right = round(100 * (1 - distance))
        return Outcome(score=right / 100, right="1" * right + "0" * (100 - right))


def searched(settings: CurveSearch, seed: int = 0) -> Landscape:
    landscape = Landscape()
    drive(settings.evolve(LAYERS, seed), landscape)
    return landscape


@pytest.mark.parametrize("curve", ["bezier", "linear", "step"])
@pytest.mark.parametrize("points", [2, 3, 4, 5])
@pytest.mark.one_in(5)
def test_every_curve_is_valid(curve: Any, points: int) -> None:
    settings = CurveSearch(curve=curve, control_points=points, generations=6, **SMALL)
    for genome in map(genome_of, searched(settings).asked):
        assert len(genome) == points
        assert all(left[0] < right[0] for left, right in pairwise(genome))
        assert genome[0][0] >= 0
        assert genome[-1][0] <= LAYERS - 1
        assert all(10 <= y <= 20 for _, y in genome)


def genes(genome: Genome) -> naive.Genes:
    return tuple(chain(*genome))


def points(flat: Sequence[int]) -> Genome:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.one_in(2)
def test_as_in_the_paper_it_is_the_naive_search(seed: int) -> None:
    settings = CurveSearch(as_in_paper=True, generations=3, patience=1)
    landscape = Landscape()
    scored, _ = drive(settings.evolve(LAYERS, seed), landscape)
    asked: list[Genome] = []

    def fitness(flat: naive.Genes) -> float:
        asked.append(points(flat))
        return landscape.outcome(settings._candidate(points(flat), LAYERS)).score

    start = (0, 15, 10, 15, 21, 15, 31, 15)
    expected = naive.search(start, LAYERS, 3, fitness, random.Random(f"lpes {seed}"))
    assert [genome_of(candidate) for candidate in landscape.asked] == asked
    assert max(outcome.score for _, outcome in scored) == expected[0][0]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("xs", [(0, 2, 5), (0, 1, 2)])
def test_mutants_are_drawn_until_they_fit_and_not_pushed_to_the_bounds(
    xs: tuple[int, int, int],
) -> None:
    """Points that stand side by side can move in one direction: equation 9 has its bounds."""
    genome: Genome = ((xs[0], 10), (xs[1], 11), (xs[2], 20))  # every point at a bound or near one
    possible = naive.mutants(genes(genome), 6)
    draws = 100 * len(possible)
    rng = random.Random(0)
    drawn = Counter(genes(mutant(genome, 6, rng)) for _ in range(draws))
    assert set(drawn) == set(possible)
    assert 0.5 < min(drawn.values()) / 100 < max(drawn.values()) / 100 < 1.6  # all as likely
    assert any(child[2] > xs[1] for child in possible)


def test_parents_are_cut_anywhere_also_inside_a_control_point() -> None:
    rng = random.Random(0)
    parents: list[Genome] = [
        ((0, 11), (5, 12), (9, 13), (30, 14)),
        ((1, 20), (12, 19), (13, 18), (31, 17)),
    ]
    drawn = {tuple(genes(child) for child in children(parents, rng)) for _ in range(500)}
    possible = {
        pair
        for pairs in (
            naive.children(genes(order[0]), genes(order[1]), 32)
            for order in (parents, parents[::-1])
        )
        for pair in pairs
        if pair
    }
    assert drawn == possible
    assert any(len(pair) == 1 for pair in possible)  # one child may be out of order


def test_the_search_ends_when_nothing_better_comes() -> None:
    settings = CurveSearch(patience=2, **SMALL)
    asked: list[int] = []

    def flat(candidates: Sequence[Candidate]) -> list[Outcome]:
        asked.append(len(candidates))
        return [Outcome(score=0.0) for _ in candidates]

    drive(settings.evolve(LAYERS, 0), flat)
    assert len(asked) == 1 + 2  # the first population, then two generations
