"""The genetic search for a curve, on fitness functions that cost nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import pytest

from rag_middle.calibration import CurveSearch, Outcome
from rag_middle.calibration.searches.genetic import Evolution, Genome
from rag_middle.errors import ConfigError
from tests.reference import lpes_search as naive

LAYERS = 32
SMALL: dict[str, Any] = {"population": 8, "parents": 4, "mutants": 4, "crossovers": 2}


class Landscape:
    """Fitness by distance from a target curve; keeps what it was asked."""

    def __init__(self, settings: CurveSearch, target: float = 1.1) -> None:
        self.settings, self.target = settings, target
        self.asked: list[Genome] = []

    def __call__(self, genomes: Sequence[Genome]) -> list[Outcome]:
        self.asked += genomes
        return [self.outcome(genome) for genome in genomes]

    def outcome(self, genome: Genome) -> Outcome:
        factors = self.settings.factors(genome, LAYERS)
        distance = sum(abs(factor - self.target) for factor in factors) / LAYERS
        right = round(100 * (1 - distance))
        return Outcome(score=right / 100, right="1" * right + "0" * (100 - right))


@pytest.mark.parametrize("curve", ["bezier", "linear", "step"])
@pytest.mark.parametrize("points", [2, 3, 4, 5])
@pytest.mark.one_in(5)
def test_every_curve_is_valid_and_kept_once(curve: Any, points: int) -> None:
    settings = CurveSearch(curve=curve, control_points=points, generations=6, **SMALL)
    landscape = Landscape(settings)
    ranked = Evolution(settings, LAYERS, 0, landscape).run()
    curves = [settings.factors(genome, LAYERS) for genome, _ in ranked]
    assert len(curves) == len(set(curves))
    assert len(curves) >= 8
    for genome in landscape.asked:
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
    landscape = Landscape(settings)
    asked: list[Genome] = []

    def fitness(flat: naive.Genes) -> float:
        asked.append(points(flat))
        return landscape.outcome(points(flat)).score

    ranked = Evolution(settings, LAYERS, seed, landscape).run()
    start = (0, 15, 10, 15, 21, 15, 31, 15)
    expected = naive.search(start, LAYERS, 3, fitness, random.Random(f"lpes {seed}"))
    assert landscape.asked == asked
    # The fittest; after them the naive search has the last children, and ours who came before.
    assert [genome for genome, _ in ranked][:12] == [points(flat) for _, flat in expected][:12]


@pytest.mark.parametrize("as_in_paper", [True, False])
@pytest.mark.one_in(4)
def test_mutants_are_drawn_until_they_fit_and_not_pushed_to_the_bounds(as_in_paper: bool) -> None:
    settings = CurveSearch(as_in_paper=as_in_paper, control_points=3)
    evolution = Evolution(settings, 6, 0, lambda genomes: [])
    genome: Genome = ((0, 10), (2, 11), (5, 20))  # every point at a bound or near one
    possible = naive.mutants(genes(genome), 6)
    draws = 100 * len(possible)
    drawn = Counter(genes(evolution._mutant(genome)) for _ in range(draws))
    assert set(drawn) == set(possible)
    assert 0.5 < min(drawn.values()) / 100 < max(drawn.values()) / 100 < 1.6  # all as likely


@pytest.mark.parametrize("as_in_paper", [True, False])
def test_parents_are_cut_anywhere_also_inside_a_control_point(as_in_paper: bool) -> None:
    settings = CurveSearch(as_in_paper=as_in_paper)
    evolution = Evolution(settings, 32, 0, lambda genomes: [])
    parents: list[Genome] = [
        ((0, 11), (5, 12), (9, 13), (30, 14)),
        ((1, 20), (12, 19), (13, 18), (31, 17)),
    ]
    drawn = {tuple(genes(child) for child in evolution._crossover(parents)) for _ in range(500)}
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


@pytest.mark.parametrize("as_in_paper", [True, False])
def test_of_two_children_the_better_is_kept(as_in_paper: bool) -> None:
    settings = CurveSearch(as_in_paper=as_in_paper)
    evolution = Evolution(settings, LAYERS, 0, Landscape(settings))
    worse: Genome = ((0, 16), (10, 16), (21, 16), (31, 16))
    better: Genome = ((0, 12), (10, 12), (21, 12), (31, 12))
    alone: Genome = ((0, 18), (10, 18), (21, 18), (31, 18))
    evolution._add([(worse, better), (alone,)])
    assert [genome for genome, _ in evolution._best()] == [better, alone]


def test_the_search_ends_when_nothing_better_comes() -> None:
    settings = CurveSearch(patience=2, **SMALL)

    def flat(genomes: Sequence[Genome]) -> list[Outcome]:
        asked.append(len(genomes))
        return [Outcome(score=0.0) for _ in genomes]

    asked: list[int] = []
    Evolution(settings, LAYERS, 0, flat).run()
    assert len(asked) == 1 + 2  # the first population, then two generations


@pytest.mark.slow
def test_the_search_climbs() -> None:
    settings = CurveSearch()
    landscape = Landscape(settings)
    ranked = Evolution(settings, LAYERS, 0, landscape).run()
    first = landscape.outcome(landscape.asked[0])
    assert first.score == 0.6
    assert ranked[0][1].score >= 0.95
    scores = [outcome.score for _, outcome in ranked]
    assert scores == sorted(scores, reverse=True)


def test_the_start_is_the_papers() -> None:
    settings = CurveSearch(generations=0)
    landscape = Landscape(settings)
    Evolution(settings, LAYERS, 0, landscape).run()
    assert landscape.asked[0] == ((0, 15), (10, 15), (21, 15), (31, 15))
    assert len(landscape.asked) == 32


def test_the_same_seed_searches_alike_and_another_does_not() -> None:
    settings = CurveSearch(generations=3, **SMALL)
    asked = []
    for seed in (1, 1, 2):
        landscape = Landscape(settings)
        Evolution(settings, LAYERS, seed, landscape).run()
        asked.append(landscape.asked)
    assert asked[0] == asked[1] != asked[2]


def test_the_bound_on_candidates_holds() -> None:
    settings = CurveSearch(generations=5, **SMALL)
    landscape = Landscape(settings)
    Evolution(settings, LAYERS, 0, landscape).run()
    assert len(landscape.asked) <= settings.max_curves == 8 + 5 * (4 + 2 * 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control_points": 6}, "2 to 5"),
        ({"parents": 1}, "parents must be 2 to"),
        ({"parents": 33}, "parents must be 2 to population=32"),
        ({"generations": -1}, "generations must be a whole number >= 0"),
        ({"patience": 0}, "patience must be a whole number >= 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CurveSearch(**settings)
