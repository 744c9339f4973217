"""The genetic search for a curve, on fitness functions that cost nothing."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from rag_middle.calibration import CurveSearch, Outcome
from rag_middle.calibration.curves import Genome
from rag_middle.calibration.search import Candidate, drive
from rag_middle.methods import LPES
from tests.reference import lpes_search as naive

pytestmark = pytest.mark.thorough

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


def test_the_search_ends_when_nothing_better_comes() -> None:
    settings = CurveSearch(patience=2, **SMALL)
    asked: list[int] = []

    def flat(candidates: Sequence[Candidate]) -> list[Outcome]:
        asked.append(len(candidates))
        return [Outcome(score=0.0) for _ in candidates]

    drive(settings.evolve(LAYERS, 0), flat)
    assert len(asked) == 1 + 2  # the first population, then two generations
