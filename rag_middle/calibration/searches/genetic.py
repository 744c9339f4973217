"""The genetic search for an LPES curve (arXiv:2606.27705, section 3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import ClassVar, get_args

from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.scoring import Candidate
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    num_layers,
    require_whole,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES
from rag_middle.ops.curves import Curve, curve_factors

#: Control points: layer, and factor in tenths.
Genome = tuple[tuple[int, int], ...]

#: The result of one draw: a mutant, or the children of a crossover, of which the best is kept.
Family = tuple[Genome, ...]

#: The outcome of each genome; one that was scored before costs nothing.
Scoring = Callable[[Sequence[Genome]], list[Outcome]]

_LOW, _HIGH, _START = 10, 20, 15  # factors, in tenths
_MAX_STEP_X, _MAX_STEP_Y = 2, 2  # of a mutation: layers, tenths
_CROSSOVER_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class CurveSearch:
    """Settings of the genetic search; defaults are the paper's, but for `patience`.

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
        as_in_paper: all generations, every child kept beside others of its curve, and fitness
            alone decides which is better.
    """

    curve: Curve = "bezier"
    control_points: int = 4
    population: int = 32
    parents: int = 12
    mutants: int = 16
    crossovers: int = 4
    generations: int = 20
    patience: int = 5
    as_in_paper: bool = False

    def __post_init__(self) -> None:
        require_whole(1, control_points=self.control_points, patience=self.patience)
        require_whole(1, population=self.population, parents=self.parents)
        require_whole(0, mutants=self.mutants, crossovers=self.crossovers)
        require_whole(0, generations=self.generations)
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

    @property
    def max_curves(self) -> int:
        """How many curves are scored at most, counting both children of a crossover."""
        return self.population + self.generations * (self.mutants + 2 * self.crossovers)

    def factors(self, genome: Genome, num_layers: int) -> tuple[float, ...]:
        """The factor of every layer; equal curves have equal factors."""
        points = [(x, y / 10) for x, y in genome]
        return tuple(round(f, 6) for f in curve_factors(points, num_layers, self.curve))


class Evolution:
    """One genetic search; the same seed and outcomes give the same one."""

    def __init__(self, settings: CurveSearch, num_layers: int, seed: int, score: Scoring) -> None:
        self.settings, self.num_layers, self.score = settings, num_layers, score
        self._rng = random.Random(f"lpes {seed}")
        self._population: list[tuple[Genome, Outcome]] = []

    def run(self) -> list[tuple[Genome, Outcome]]:
        """Genomes that were kept, the fittest first."""
        settings = self.settings
        last = self.num_layers - 1
        steps = settings.control_points - 1
        start: Genome = tuple((round(k * last / steps), _START) for k in range(steps + 1))
        mutants = [self._mutant(start) for _ in range(settings.population - 1)]
        self._add([(start,), *((mutant,) for mutant in mutants)])
        best, without_gain = self._fitness(self._best()[0][1]), 0
        for _ in range(settings.generations):
            parents = [genome for genome, _ in self._best()[: settings.parents]]
            mutants = [self._mutant(self._rng.choice(parents)) for _ in range(settings.mutants)]
            pairs = [self._crossover(parents) for _ in range(settings.crossovers)]
            self._add([*((mutant,) for mutant in mutants), *filter(None, pairs)])
            before, best = best, self._fitness(self._best()[0][1])
            without_gain = 0 if best > before else without_gain + 1
            if without_gain >= settings.patience and not settings.as_in_paper:
                break
        return self._best()

    def _curve(self, genome: Genome) -> tuple[float, ...]:
        return self.settings.factors(genome, self.num_layers)

    def _fitness(self, outcome: Outcome) -> tuple[float, ...]:
        """The score; except as in the paper, the log-likelihood decides between equals."""
        if self.settings.as_in_paper:
            return (outcome.score,)
        return outcome.score, outcome.log_likelihood or 0.0

    def _best(self) -> list[tuple[Genome, Outcome]]:
        # Stable: of equals, the older first.
        return sorted(self._population, key=lambda pair: self._fitness(pair[1]), reverse=True)

    def _add(self, families: Sequence[Family]) -> None:
        """Score families, and keep the best of each; except as in the paper, a curve once."""
        outcomes = iter(self.score(list(chain(*families))))
        kept = {self._curve(genome) for genome, _ in self._population}
        for family in families:
            scored = [(genome, next(outcomes)) for genome in family]
            genome, outcome = max(scored, key=lambda pair: self._fitness(pair[1]))
            curve = self._curve(genome)
            if self.settings.as_in_paper or curve not in kept:
                self._population.append((genome, outcome))
                kept.add(curve)

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


@dataclass(frozen=True, kw_only=True)
class LayerSearch(CurveSearch, Search):
    """LPES: a genetic search for the curve of factors; settings are those of `CurveSearch`.

    Fitness is 0.2, 0.3 and 0.5 times the accuracy with the gold document at the begin, in the
    middle and at the end, each question asked at all three. Accuracy is that of generated answers
    where the model has a chat template; elsewhere that of `exact_match`, which is the same only
    where the model answers with nothing but the value.

    Operators are the paper's. What differs, and does not under `as_in_paper`: the search ends
    after five generations without a better curve, a curve is kept once, the log-likelihood decides
    between equal scores, and 30 questions are asked, not 200. ``lpes:paper`` is the paper's search,
    with its 200 questions and 500 held-out ones.
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
        layers = num_layers(model)
        if self.control_points > layers:
            raise ConfigError(
                f"{self.control_points} control points need as many layers, and the model has "
                f"{layers}: lower control_points."
            )
        return self.max_curves

    def run(self, inputs: SearchInputs) -> SearchResult:
        layers = num_layers(inputs.model)

        def candidate(genome: Genome) -> Candidate:
            factors = self.factors(genome, layers)
            points = [[x, y / 10] for x, y in genome]
            key = " ".join(f"{factor:g}" for factor in factors)
            return Candidate(key, LPES(factors=factors), {"control_points": points})

        def score(genomes: Sequence[Genome]) -> list[Outcome]:
            return inputs.evaluator.outcomes([candidate(genome) for genome in genomes])

        ranked = Evolution(self, layers, inputs.seed, score).run()
        return SearchResult(ranked=[(candidate(genome), outcome) for genome, outcome in ranked])
