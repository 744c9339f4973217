"""The genetic search for an LPES curve (arXiv:2606.27705, section 3), and what makes it cheaper.

Two things do: races (`Race`), and screening, which scores those of many children that are most
like good curves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import ClassVar, get_args

import numpy as np

from rag_middle.calibration.evaluator import Candidate
from rag_middle.calibration.examples import ScoringScheme
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    num_layers,
    require_numbers,
    require_whole,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method
from rag_middle.ops.curves import Curve, curve_factors

#: Control points: layer, and factor in tenths.
Genome = tuple[tuple[int, int], ...]

#: The result of one draw: a mutant, or the children of a crossover, of which the best is kept.
Family = tuple[Genome, ...]

#: Scores genomes that may be dropped once they are clearly worse than the race's reference.
Scoring = Callable[[Sequence[Genome], Race | None], list[Outcome]]

_LOW, _HIGH, _START = 10, 20, 15  # factors, in tenths
_MAX_STEP_X, _MAX_STEP_Y = 2, 2  # of a mutation: layers, tenths
_CROSSOVER_TRIES = 4
_RACE_HISTORY = 3  # races know this many times `parents` of the best curves
_REDRAWS = 8
#: Root mean square distance over the layers at which a curve's weight in screening is 1/e: half
#: of the longest step of a mutation.
_NEAR = 0.1
#: Weight of a curve however far away, so that where nothing is near, the mean of all is expected.
_FAR_WEIGHT = 1e-12


@dataclass(frozen=True, kw_only=True)
class CurveSearch:
    """Settings of the genetic search; defaults are the paper's, but for what makes it cheaper.

    Attributes:
        curve: how factors lie between control points.
        control_points: 2 to 5.
        population: individuals of the first generation.
        parents: the best, from which the next generation comes.
        mutants: children by mutation in each generation.
        crossovers: pairs of children of two parents in each generation; the better child of a
            pair is kept.
        generations: after the first, at most.
        patience: generations without a better curve after which the search ends.
        racing: drop children that are clearly worse than the worst parent; not in the paper.
        risk: highest probability of dropping one that is as good, as estimated from the best
            curves so far; see `Race`.
        screening: mutants and pairs drawn per one that is scored, which is the one most like good
            curves. 1, as in the paper, to score them all.
        as_in_paper: no races, no screening, all generations, every child scored on every prompt
            and kept beside others of its curve (which have its score already), and fitness alone
            decides which is better. `patience`, `racing`, `risk` and `screening` then have no
            effect.
    """

    curve: Curve = "bezier"
    control_points: int = 4
    population: int = 32
    parents: int = 12
    mutants: int = 16
    crossovers: int = 4
    generations: int = 20
    patience: int = 5
    racing: bool = True
    risk: float = 0.05
    screening: int = 4
    as_in_paper: bool = False

    def __post_init__(self) -> None:
        for name in ("control_points", "population", "parents", "patience", "screening"):
            require_whole(1, **{name: getattr(self, name)})
        for name in ("mutants", "crossovers", "generations"):
            require_whole(0, **{name: getattr(self, name)})
        for name in ("racing", "as_in_paper"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}.")
        if self.curve not in get_args(Curve):
            raise ConfigError(
                f"curve must be one of {', '.join(get_args(Curve))}, got {self.curve!r}."
            )
        if not 2 <= self.control_points <= 5:
            raise ConfigError(f"control_points must be 2 to 5, got {self.control_points}.")
        if not 2 <= self.parents <= self.population:
            raise ConfigError(
                f"parents must be 2 to population={self.population}, got {self.parents}: set both."
            )
        require_numbers(risk=[self.risk])
        if not 0 <= self.risk < 1:
            raise ConfigError(f"risk must be from 0 to below 1, got {self.risk}.")

    def require_layers(self, num_layers: int) -> None:
        """Raise ConfigError where a model has fewer layers than control points."""
        if self.control_points > num_layers:
            raise ConfigError(
                f"{self.control_points} control points need as many layers, and the model has "
                f"{num_layers}: lower control_points."
            )

    @property
    def max_curves(self) -> int:
        """How many curves are scored at most, counting both children of a crossover."""
        return self.population + self.generations * (self.mutants + 2 * self.crossovers)

    def factors(self, genome: Genome, num_layers: int) -> tuple[float, ...]:
        """The factor of every layer; equal curves have equal factors."""
        points = [(x, y / 10) for x, y in genome]
        return tuple(round(f, 6) for f in curve_factors(points, num_layers, self.curve))


@dataclass(frozen=True, slots=True)
class _Scored:
    genome: Genome
    outcome: Outcome
    fitness: float  # the expected score, where it was dropped


def evolve(
    settings: CurveSearch,
    num_layers: int,
    seed: int,
    score: Scoring,
    scheme: ScoringScheme | None = None,
) -> list[tuple[Genome, Outcome]]:
    """Genomes that were scored completely and kept, the fittest first.

    Args:
        settings: of the search.
        num_layers: of the model.
        seed: the same seed and outcomes give the same search.
        score: computes the fitness of genomes.
        scheme: of the prompts behind the fitness, for races; by default each is a question.

    Raises:
        ConfigError: more control points than layers.
    """
    settings.require_layers(num_layers)
    return _Evolution(settings, num_layers, seed, score, scheme).run()


@dataclass
class _Evolution:
    """The arguments are those of `evolve`."""

    settings: CurveSearch
    num_layers: int
    seed: int
    score: Scoring
    scheme: ScoringScheme | None = None

    def __post_init__(self) -> None:
        self._rng = random.Random(f"lpes {self.seed}")
        self._scored: dict[tuple[float, ...], _Scored] = {}  # by curve
        self._population: list[_Scored] = []
        self._curves: dict[Genome, tuple[float, ...]] = {}

    def run(self) -> list[tuple[Genome, Outcome]]:
        settings = self.settings
        last = self.num_layers - 1
        steps = settings.control_points - 1
        start: Genome = tuple((round(k * last / steps), _START) for k in range(steps + 1))
        first: list[Family] = [(start,)]
        while len(first) < settings.population:
            first.append((self._new_genome(lambda: self._mutant(start), first),))
        # The first parents are scored on everything: children race against the worst of them.
        self._add(first[: settings.parents])
        self._add(first[settings.parents :])
        best, without_gain = self._fitness(self._best()[0]), 0
        for _ in range(settings.generations):
            parents = [scored.genome for scored in self._best()[: settings.parents]]
            self._add(self._children(parents))
            before, best = best, self._fitness(self._best()[0])
            without_gain = 0 if best > before else without_gain + 1
            if without_gain >= settings.patience and not settings.as_in_paper:
                break
        return [(scored.genome, scored.outcome) for scored in self._best()]

    def _children(self, parents: Sequence[Genome]) -> list[Family]:
        settings = self.settings
        draws = 1 if settings.as_in_paper else settings.screening
        mutants: list[Family] = []
        for _ in range(draws * settings.mutants):
            genome = self._new_genome(lambda: self._mutant(self._rng.choice(parents)), mutants)
            mutants.append((genome,))
        pairs = [self._crossover(parents) for _ in range(draws * settings.crossovers)]
        pairs = [pair for pair in pairs if pair]
        if draws == 1:
            return mutants + pairs
        return [
            *self._most_promising(mutants, settings.mutants),
            *self._most_promising(pairs, settings.crossovers),
        ]

    def _most_promising(self, families: Sequence[Family], count: int) -> list[Family]:
        """The `count` families of best expected rank among those with a curve not scored yet."""
        by_curves = {tuple(map(self._curve, family)): family for family in reversed(families)}
        new = [
            family
            for curves, family in reversed(by_curves.items())
            if any(curve not in self._scored for curve in curves)
        ]
        fitness = {curve: self._fitness(scored) for curve, scored in self._scored.items()}
        ranks = iter(expected_ranks([self._curve(genome) for genome in chain(*new)], fitness))
        best_ranks = [max(next(ranks) for _ in family) for family in new]
        best_first = sorted(zip(best_ranks, new, strict=True), key=lambda pair: -pair[0])  # stable
        return [family for _, family in best_first[:count]]

    def _curve(self, genome: Genome) -> tuple[float, ...]:
        """The factors of a genome, computed once."""
        if genome not in self._curves:
            self._curves[genome] = self.settings.factors(genome, self.num_layers)
        return self._curves[genome]

    def _fitness(self, scored: _Scored) -> tuple[float, ...]:
        """The fitness; except as in the paper, the log-likelihood decides between equals."""
        if self.settings.as_in_paper:
            return (scored.fitness,)
        return scored.fitness, scored.outcome.log_likelihood or 0.0

    def _best(self) -> list[_Scored]:
        return sorted(self._population, key=self._fitness, reverse=True)  # stable: older first

    def _add(self, families: Sequence[Family]) -> None:
        """Score families, and keep the best of each; except as in the paper, a curve once."""
        settings = self.settings
        genomes = list(chain(*families))
        race = None
        if not settings.as_in_paper:
            # Reversed, so that of genomes with one curve the first is kept.
            new = {
                self._curve(g): g for g in reversed(genomes) if self._curve(g) not in self._scored
            }
            genomes = list(new.values())[::-1]
            race = self._race() if settings.racing else None
        outcomes = self.score(genomes, race) if genomes else []
        for genome, outcome in zip(genomes, outcomes, strict=True):
            dropped = race if not outcome.complete else None
            fitness = dropped.expected_score(outcome.right) if dropped else outcome.score
            self._scored.setdefault(self._curve(genome), _Scored(genome, outcome, fitness))
        for family in families:
            scored = [
                replace(self._scored[self._curve(genome)], genome=genome) for genome in family
            ]
            complete = [child for child in scored if child.outcome.complete]
            if not complete:
                continue
            best = max(complete, key=self._fitness)
            curves = {self._curve(scored.genome) for scored in self._population}
            if settings.as_in_paper or self._curve(best.genome) not in curves:
                self._population.append(best)

    def _race(self) -> Race | None:
        """Against the worst parent; none before there are enough."""
        parents = self.settings.parents
        verdicts = [scored.outcome.right for scored in self._best()]
        if len(verdicts) < parents or not verdicts[0]:
            return None
        return Race(
            reference=verdicts[parents - 1],
            # Children are like their parents, not like what the search began with.
            earlier=tuple(verdicts[: _RACE_HISTORY * parents]),
            risk=self.settings.risk,
            scheme=self.scheme,
        )

    def _new_genome(self, draw: Callable[[], Genome], others: Sequence[Family]) -> Genome:
        """A genome whose curve was not scored yet, if a few draws find one."""
        genome = draw()
        if self.settings.as_in_paper:
            return genome
        waiting = {self._curve(other) for other in chain(*others)}
        for _ in range(_REDRAWS):
            curve = self._curve(genome)
            if curve not in self._scored and curve not in waiting:
                break
            genome = draw()
        return genome

    def _mutant(self, genome: Genome) -> Genome:
        """Every gene moved, between the neighbours that it had; drawn again until it is valid."""
        while True:
            points = []
            for k, (x, y) in enumerate(genome):
                low = genome[k - 1][0] + 1 if k else 0
                high = genome[k + 1][0] - 1 if k + 1 < len(genome) else self.num_layers - 1
                moved_x = self._moved(x, _MAX_STEP_X, low, high)
                points.append((moved_x, self._moved(y, _MAX_STEP_Y, _LOW, _HIGH)))
            if _is_ascending(points):  # neighbours may have moved towards each other
                return tuple(points)

    def _moved(self, gene: int, max_step: int, low: int, high: int) -> int:
        while True:
            moved = gene + self._rng.randint(-max_step, max_step)
            if low <= moved <= high:
                return moved

    def _crossover(self, parents: Sequence[Genome]) -> Family:
        """Children of two parents that swap all genes from a cut on: two, one, or none."""
        for _ in range(_CROSSOVER_TRIES):
            one, other = (tuple(chain(*genome)) for genome in self._rng.sample(list(parents), 2))
            cut = self._rng.randrange(1, len(one))  # may fall inside a control point
            swapped = [one[:cut] + other[cut:], other[:cut] + one[cut:]]
            children = [tuple(zip(genes[::2], genes[1::2], strict=True)) for genes in swapped]
            valid = tuple(child for child in children if _is_ascending(child))
            if valid:
                return valid
        return ()


def _is_ascending(points: Sequence[tuple[int, int]]) -> bool:
    return all(left[0] < right[0] for left, right in pairwise(points))


def expected_ranks(
    curves: Sequence[Sequence[float]], fitness: Mapping[tuple[float, ...], tuple[float, ...]]
) -> list[float]:
    """The share of scored curves that each curve is expected to be as good as, from 0 to 1.

    The mean of the scored curves' own ranks, weighted by nearness (Nadaraya-Watson regression with
    a Gaussian kernel). Ranks, and not scores, so that neither the scale of the fitness matters,
    nor how much worse bad curves are.

    Args:
        curves: factors of every layer.
        fitness: of scored curves, higher being better; equal ones share the mean of their ranks.
    """
    if not curves or not fitness:
        return [0.5] * len(curves)
    # [curves, scored curves, layers]
    distances = np.asarray(curves)[:, None] - np.asarray(list(fitness))[None]
    weights = np.exp(-np.square(distances).mean(-1) / _NEAR**2) + _FAR_WEIGHT
    ascending = sorted(fitness.values())
    last = {value: index for index, value in enumerate(ascending, start=1)}
    ranks = [
        (ascending.index(value) + 1 + last[value]) / 2 / len(ascending)
        for value in fitness.values()
    ]
    expected = weights @ np.asarray(ranks) / weights.sum(-1)
    # Sums differ in their last digits between machines; equal curves must stay equal.
    rounded: list[float] = expected.round(9).tolist()
    return rounded


@dataclass(frozen=True, kw_only=True)
class LayerSearch(CurveSearch, Search):
    """LPES: a genetic search for the curve of factors; settings are those of `CurveSearch`.

    Fitness is 0.2, 0.3 and 0.5 times the accuracy with the gold document at the begin, in the
    middle and at the end, each question asked at all three. Accuracy is that of generated answers
    where the model has a chat template; elsewhere that of `exact_match`, which is the same only
    where the model answers with nothing but the value.

    Operators are the paper's. What differs, and does not under `as_in_paper`, makes the search
    cheaper: no curve is scored twice, only the most promising children are scored, clear losers are
    dropped early, the search ends after five generations without a better curve, the log-likelihood
    decides between equal scores, and 30 questions are asked, not 200. ``lpes:paper`` is the paper's
    search, with its 200 questions and 500 held-out ones.
    """

    method: ClassVar[str] = "lpes"
    criterion: ClassVar[Criterion] = "exact_match"
    weights: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)

    @property
    def questions(self) -> int:
        return 200 if self.as_in_paper else 30

    @property
    def held_out(self) -> int:
        return 500 if self.as_in_paper else 100

    def criterion_for(self, *, chat: bool) -> Criterion:
        return "generated_answer" if chat else self.criterion

    def max_candidates(self, model: RagMiddleModel) -> int:
        self.require_layers(num_layers(model))
        return self.max_curves

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        return [LPES(factors=1.5)]

    def run(self, inputs: SearchInputs) -> SearchResult:
        layers = num_layers(inputs.model)

        def candidate(genome: Genome) -> Candidate:
            factors = self.factors(genome, layers)
            points = [[x, y / 10] for x, y in genome]
            key = " ".join(f"{factor:g}" for factor in factors)
            return Candidate(key, LPES(factors=factors), {"control_points": points})

        def score(genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
            return inputs.evaluator.outcomes([candidate(genome) for genome in genomes], race)

        scheme = ScoringScheme.of(inputs.examples) if inputs.examples else None
        ranked = evolve(self, layers, inputs.seed, score, scheme)
        return SearchResult(ranked=[(candidate(genome), outcome) for genome, outcome in ranked])
