"""The genetic search for an LPES curve (arXiv:2606.27705, section 3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import ClassVar, Literal

from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.search import Candidate, Proposals, Search, SearchInputs, num_layers
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES
from rag_middle.methods.rules import one_of, option, whole
from rag_middle.ops.curves import Curve, curve_factors

#: Control points: layer, and factor in tenths.
Genome = tuple[tuple[int, int], ...]

_LOW, _HIGH, _START = 10, 20, 15  # factors, in tenths
_MAX_STEP = 2  # of a mutation: layers, or tenths
_CROSSOVER_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class CurveSearch(Search):
    """LPES: a genetic search for the curve of factors.

    Fitness is 0.2, 0.3 and 0.5 times the accuracy with the gold document at the begin, in the
    middle and at the end, each question asked at all three. Accuracy is that of generated answers
    (equation 7) where the model has a chat template; elsewhere that of `exact_match`, which is the
    same only where the model answers with nothing but the value.

    Operators are the paper's. What differs, and does not under `as_in_paper`: the search ends
    after five generations without a better curve, a curve is kept once, the log-likelihood decides
    between equal scores, 30 questions are asked, not 200, and accuracy is `exact_match` without a
    chat template. ``lpes:paper`` is the paper's search, with its 200 questions and 500 held-out
    ones.

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
            alone, by generated answers, decides which is better.
    """

    method: ClassVar[str] = "lpes"
    criterion: ClassVar[Criterion] = "exact_match"
    weights: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)

    curve: Curve = option("bezier", one_of(Curve))
    control_points: int = option(4, one_of(Literal[2, 3, 4, 5]))
    population: int = option(32, whole(1))
    parents: int = option(12, whole(2))
    mutants: int = option(16, whole(0))
    crossovers: int = option(4, whole(0))
    generations: int = option(20, whole(0))
    patience: int = option(5, whole(1))
    as_in_paper: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parents > self.population:
            raise ConfigError(
                f"parents must be 2 to population={self.population}, got {self.parents}: set both."
            )

    @property
    def questions(self) -> int:
        return 200 if self.as_in_paper else 30

    @property
    def held_out(self) -> int:
        return 500 if self.as_in_paper else 100

    def criterion_for(self, *, chat: bool) -> Criterion:
        return "generated_answer" if chat or self.as_in_paper else self.criterion

    def fitness(self, outcome: Outcome) -> tuple[float, ...]:
        """The score; except as in the paper, the log-likelihood decides between equals."""
        if self.as_in_paper:
            return (outcome.score,)
        return outcome.score, outcome.log_likelihood or 0.0

    def max_candidates(self, model: RagMiddleModel) -> int:
        layers = num_layers(model)
        if self.control_points > layers:
            raise ConfigError(
                f"{self.control_points} control points need as many layers, and the model has "
                f"{layers}: lower control_points."
            )
        return self.population + self.generations * (self.mutants + 2 * self.crossovers)

    def propose(self, inputs: SearchInputs) -> Proposals:
        return self.evolve(num_layers(inputs.model), inputs.seed)

    def evolve(self, num_layers: int, seed: int) -> Proposals:
        """Every generation's new curves; the same seed and outcomes give the same ones."""
        rng = random.Random(f"lpes {seed}")
        steps = self.control_points - 1
        start: Genome = tuple(
            (round(k * (num_layers - 1) / steps), _START) for k in range(steps + 1)
        )
        # Of the genomes of one draw, a mutant or the children of a crossover, the best is kept.
        families: list[Sequence[Genome]] = [
            (start,),
            *((mutant(start, num_layers, rng),) for _ in range(self.population - 1)),
        ]
        kept: list[tuple[tuple[float, ...], Genome]] = []
        curves: set[tuple[float, ...]] = set()
        without_gain = 0
        for generation in range(self.generations + 1):
            genomes = list(chain(*families))
            outcomes = iter((yield [self._candidate(genome, num_layers) for genome in genomes]))
            best_before = kept[0][0] if kept else ()
            for family in families:
                scored = [(self.fitness(next(outcomes)), genome) for genome in family]
                fitness, genome = max(scored, key=lambda pair: pair[0])
                curve = self.factors(genome, num_layers)
                if self.as_in_paper or curve not in curves:
                    kept.append((fitness, genome))
                    curves.add(curve)
            kept.sort(key=lambda pair: pair[0], reverse=True)  # stable: of equals, the older first
            without_gain = 0 if kept[0][0] > best_before else without_gain + 1
            tired = without_gain >= self.patience and not self.as_in_paper
            if generation == self.generations or tired:
                break
            parents = [genome for _, genome in kept[: self.parents]]
            families = [
                (mutant(rng.choice(parents), num_layers, rng),) for _ in range(self.mutants)
            ]
            families += filter(None, [children(parents, rng) for _ in range(self.crossovers)])
        return {}

    def factors(self, genome: Genome, num_layers: int) -> tuple[float, ...]:
        """The factor of every layer; equal curves have equal factors."""
        points = [(x, y / 10) for x, y in genome]
        return tuple(round(f, 6) for f in curve_factors(points, num_layers, self.curve))

    def _candidate(self, genome: Genome, num_layers: int) -> Candidate:
        factors = self.factors(genome, num_layers)
        points = [[x, y / 10] for x, y in genome]
        key = " ".join(f"{factor:g}" for factor in factors)
        return Candidate(key, LPES(factors=factors), {"control_points": points})


LayerSearch = CurveSearch


def mutant(genome: Genome, num_layers: int, rng: random.Random) -> Genome:
    """Every gene moved within the bounds of equation 9; drawn again until x rises (equation 10).

    The bounds of x are the neighbours that a point had, these included.
    """
    while True:
        points = []
        for k, (x, y) in enumerate(genome):
            low = genome[k - 1][0] if k else 0
            high = genome[k + 1][0] if k + 1 < len(genome) else num_layers - 1
            points.append((_moved(x, low, high, rng), _moved(y, _LOW, _HIGH, rng)))
        if _is_ascending(points):
            return tuple(points)


def children(parents: Sequence[Genome], rng: random.Random) -> tuple[Genome, ...]:
    """Children of two parents that swap all genes from a cut on: two, one, or none."""
    for _ in range(_CROSSOVER_TRIES):
        one, other = (tuple(chain(*genome)) for genome in rng.sample(list(parents), 2))
        cut = rng.randrange(1, len(one))  # may fall inside a control point
        swapped = [one[:cut] + other[cut:], other[:cut] + one[cut:]]
        pair = [tuple(zip(genes[::2], genes[1::2], strict=True)) for genes in swapped]
        if valid := tuple(child for child in pair if _is_ascending(child)):
            return valid
    return ()


def _moved(gene: int, low: int, high: int, rng: random.Random) -> int:
    while True:
        moved = gene + rng.randint(-_MAX_STEP, _MAX_STEP)
        if low <= moved <= high:
            return moved


def _is_ascending(points: Sequence[tuple[int, int]]) -> bool:
    return all(left[0] < right[0] for left, right in pairwise(points))
