"""The genetic search for an LPES curve (arXiv:2606.27705, section 3), and what makes it cheaper."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import get_args

from rag_middle.calibration.checks import require_numbers, require_whole
from rag_middle.calibration.examples import ScoringScheme
from rag_middle.calibration.objective import Outcome
from rag_middle.calibration.racing import Race
from rag_middle.calibration.screening import expected_ranks
from rag_middle.errors import CalibrationConfigError
from rag_middle.ops.curves import Curve, curve_factors

__all__ = ["CurveSearch", "Genome", "evolve"]

#: Control points: layer, and factor in tenths.
Genome = tuple[tuple[int, int], ...]

#: What comes of one draw: a mutant, or the children of a crossover, of which the best is kept.
Family = tuple[Genome, ...]

#: Scores genomes that may be dropped once they are clearly worse than the race's reference.
Scoring = Callable[[Sequence[Genome], Race | None], list[Outcome]]

_LOW, _HIGH, _START = 10, 20, 15  # tenths
_REACH_X, _REACH_Y = 2, 2  # layers, tenths
_TRIES = 4
_KNOWN = 3  # this many times `parents` of the best curves tell what children will answer
_REDRAWS = 8


@dataclass(frozen=True, kw_only=True)
class CurveSearch:
    """Settings of the genetic search; defaults are the paper's, but for what makes it cheaper.

    Attributes:
        curve: how factors lie between control points.
        control_points: 2 to 5.
        population: individuals of the first generation.
        parents: the best, from which the next generation comes.
        mutants: children by mutation in each generation.
        crossovers: pairs of children of two parents in each generation; of a pair the better child
            is kept.
        generations: after the first, at most.
        patience: generations without a better curve after which the search ends.
        racing: give up on children that are clearly worse than the worst parent; not the paper's.
        risk: most that the chance may be of giving up on one that is as good, as estimated from
            the best curves so far; see `Race`.
        screening: mutants and pairs drawn for each one that is scored: those most like good curves
            are. 1, as in the paper, to score them all.
        as_in_paper: without what makes it cheaper: no race, no screening, all generations, every
            child scored on everything, also one whose curve was scored before, and fitness alone
            says which is better. `patience`, `racing`, `risk` and `screening` are then without
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
                raise CalibrationConfigError(
                    f"{name} must be true or false, got {getattr(self, name)!r}."
                )
        if self.curve not in get_args(Curve):
            raise CalibrationConfigError(
                f"curve must be one of {', '.join(get_args(Curve))}, got {self.curve!r}."
            )
        if not 2 <= self.control_points <= 5:
            raise CalibrationConfigError(
                f"control_points must be 2 to 5, got {self.control_points}."
            )
        if not 2 <= self.parents <= self.population:
            raise CalibrationConfigError(
                f"parents must be 2 to population={self.population}, got {self.parents}: set both."
            )
        require_numbers(risk=[self.risk])
        if not 0 <= self.risk < 1:
            raise CalibrationConfigError(f"risk must be from 0 to below 1, got {self.risk}.")

    def require_layers(self, num_layers: int) -> None:
        """Raise CalibrationConfigError where a model has fewer layers than control points."""
        if self.control_points > num_layers:
            raise CalibrationConfigError(
                f"{self.control_points} control points need as many layers, and the model has "
                f"{num_layers}: lower control_points."
            )

    @property
    def most_curves(self) -> int:
        """How many curves are scored at most: of a crossover, both children are."""
        return self.population + self.generations * (self.mutants + 2 * self.crossovers)

    def factors(self, genome: Genome, num_layers: int) -> tuple[float, ...]:
        """The factor of every layer; equal curves have equal factors."""
        points = [(x, y / 10) for x, y in genome]
        return tuple(round(f, 6) for f in curve_factors(points, num_layers, self.curve))


@dataclass(frozen=True, slots=True)
class _Scored:
    genome: Genome
    outcome: Outcome
    fitness: float  # what is expected of it, where it was dropped


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
        score: fitness of genomes.
        scheme: of the prompts that it is made of, for races; by default each is a question.

    Raises:
        CalibrationConfigError: more control points than layers.
    """
    settings.require_layers(num_layers)
    return _Evolution(settings, num_layers, seed, score, scheme).run()


class _Evolution:
    def __init__(
        self,
        settings: CurveSearch,
        num_layers: int,
        seed: int,
        score: Scoring,
        scheme: ScoringScheme | None,
    ) -> None:
        self._settings = settings
        self._layers = num_layers
        self._rng = random.Random(f"lpes {seed}")
        self._score = score
        self._scheme = scheme
        self._curves: dict[tuple[float, ...], _Scored] = {}
        self._kept: list[_Scored] = []
        self._drawn: dict[Genome, tuple[float, ...]] = {}

    def run(self) -> list[tuple[Genome, Outcome]]:
        settings = self._settings
        last = self._layers - 1
        steps = settings.control_points - 1
        start: Genome = tuple((round(k * last / steps), _START) for k in range(steps + 1))
        first: list[Family] = [(start,)]
        while len(first) < settings.population:
            first.append((self._new(partial(self._mutant, start), first),))
        # The first parents have to be scored on everything before anybody can be worse than they.
        self._add(first[: settings.parents])
        self._add(first[settings.parents :])
        best, waited = self._rank(self._best()[0]), 0
        for _ in range(settings.generations):
            parents = [each.genome for each in self._best()[: settings.parents]]
            self._add(self._families(parents))
            before, best = best, self._rank(self._best()[0])
            waited = 0 if best > before else waited + 1
            if waited >= settings.patience and not settings.as_in_paper:
                break
        return [(each.genome, each.outcome) for each in self._best()]

    def _families(self, parents: Sequence[Genome]) -> list[Family]:
        settings = self._settings
        drawn = 1 if settings.as_in_paper else settings.screening
        mutants: list[Family] = []
        for _ in range(drawn * settings.mutants):
            mutants.append((self._new(partial(self._child, parents), mutants),))
        pairs = [self._crossed(parents) for _ in range(drawn * settings.crossovers)]
        pairs = [pair for pair in pairs if pair]
        if drawn == 1:
            return mutants + pairs
        return [
            *self._most_promising(mutants, settings.mutants),
            *self._most_promising(pairs, settings.crossovers),
        ]

    def _most_promising(self, families: Sequence[Family], count: int) -> list[Family]:
        """Of families with a curve that was not scored yet, those with the best to be expected."""
        by_curves = {tuple(map(self._curve, family)): family for family in reversed(families)}
        new = [
            family
            for curves, family in reversed(by_curves.items())
            if any(curve not in self._curves for curve in curves)
        ]
        known = {curve: self._rank(scored) for curve, scored in self._curves.items()}
        ranks = iter(expected_ranks([self._curve(each) for each in chain(*new)], known))
        expected = [max(next(ranks) for _ in family) for family in new]
        best_first = sorted(zip(expected, new, strict=True), key=lambda pair: -pair[0])  # stable
        return [family for _, family in best_first[:count]]

    def _curve(self, genome: Genome) -> tuple[float, ...]:
        """The factors of a genome, worked out once."""
        if genome not in self._drawn:
            self._drawn[genome] = self._settings.factors(genome, self._layers)
        return self._drawn[genome]

    def _rank(self, scored: _Scored) -> tuple[float, ...]:
        """By fitness; the likelihood of the answers decides between equals, but in the paper."""
        if self._settings.as_in_paper:
            return (scored.fitness,)
        return scored.fitness, scored.outcome.log_likelihood or 0.0

    def _best(self) -> list[_Scored]:
        return sorted(self._kept, key=self._rank, reverse=True)  # stable: older first

    def _add(self, families: Sequence[Family]) -> None:
        """Score families, and keep the best of each; a curve once, but in the paper."""
        settings = self._settings
        genomes = list(chain(*families))
        if not settings.as_in_paper:
            genomes = self._unscored(genomes)
        race = self._race() if settings.racing and not settings.as_in_paper else None
        outcomes = self._score(genomes, race) if genomes else []
        for genome, outcome in zip(genomes, outcomes, strict=True):
            dropped = race if not outcome.complete else None
            fitness = dropped.expected(outcome.right) if dropped else outcome.score
            self._curves.setdefault(self._curve(genome), _Scored(genome, outcome, fitness))
        for family in families:
            scored = [replace(self._curves[self._curve(each)], genome=each) for each in family]
            complete = [each for each in scored if each.outcome.complete]
            if complete:
                self._keep(max(complete, key=self._rank))

    def _keep(self, scored: _Scored) -> None:
        curve = self._curve(scored.genome)
        if self._settings.as_in_paper or all(self._curve(k.genome) != curve for k in self._kept):
            self._kept.append(scored)

    def _race(self) -> Race | None:
        """Against the worst parent; none before there are enough."""
        best = [each.outcome.right for each in self._best()]
        if len(best) < self._settings.parents or not best[0]:
            return None
        worst = best[self._settings.parents - 1]
        # Children are like their parents, not like what the search began with.
        known = tuple(best[: _KNOWN * self._settings.parents])
        return Race(reference=worst, known=known, risk=self._settings.risk, scheme=self._scheme)

    def _unscored(self, genomes: Sequence[Genome]) -> list[Genome]:
        """One genome of each curve that was not scored yet."""
        of_curve = {self._curve(each): each for each in reversed(genomes)}
        new = [genome for curve, genome in of_curve.items() if curve not in self._curves]
        return new[::-1]

    def _new(self, draw: Callable[[], Genome], others: Sequence[Family]) -> Genome:
        """A genome whose curve was not scored yet, if a few draws find one."""
        genome = draw()
        if self._settings.as_in_paper:
            return genome
        waiting = {self._curve(each) for each in chain(*others)}
        for _ in range(_REDRAWS):
            curve = self._curve(genome)
            if curve not in self._curves and curve not in waiting:
                break
            genome = draw()
        return genome

    def _child(self, parents: Sequence[Genome]) -> Genome:
        return self._mutant(self._rng.choice(parents))

    def _mutant(self, genome: Genome) -> Genome:
        """Every gene moved, each between the neighbours that it had; drawn again until it fits."""
        while True:
            points = []
            for k, (x, y) in enumerate(genome):
                low = genome[k - 1][0] + 1 if k else 0
                high = genome[k + 1][0] - 1 if k + 1 < len(genome) else self._layers - 1
                moved_x = self._moved(x, _REACH_X, low, high)
                points.append((moved_x, self._moved(y, _REACH_Y, _LOW, _HIGH)))
            if _rises(points):  # neighbours may have moved towards each other
                return tuple(points)

    def _moved(self, gene: int, reach: int, low: int, high: int) -> int:
        while True:
            moved = gene + self._rng.randint(-reach, reach)
            if low <= moved <= high:
                return moved

    def _crossed(self, parents: Sequence[Genome]) -> Family:
        """Children of two parents that swap all genes from a cut on: two, one, or none."""
        for _ in range(_TRIES):
            one, other = (tuple(chain(*each)) for each in self._rng.sample(list(parents), 2))
            cut = self._rng.randrange(1, len(one))  # may fall inside a control point
            swapped = [one[:cut] + other[cut:], other[:cut] + one[cut:]]
            children = [tuple(zip(genes[::2], genes[1::2], strict=True)) for genes in swapped]
            valid = tuple(each for each in children if _rises(each))
            if valid:
                return valid
        return ()


def _rises(points: Sequence[tuple[int, int]]) -> bool:
    return all(left[0] < right[0] for left, right in pairwise(points))
