"""The search for an LPES curve (arXiv:2606.27705, appendix E), and what makes it cheaper."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import get_args

from rag_middle.calibration.checks import require_numbers, require_whole
from rag_middle.calibration.objective import Outcome
from rag_middle.calibration.racing import Race
from rag_middle.calibration.screening import expected_ranks
from rag_middle.errors import CalibrationConfigError
from rag_middle.ops.curves import Curve, curve_factors

__all__ = ["CurveSearch", "Genome", "evolve"]

#: Control points: layer, and factor in tenths.
Genome = tuple[tuple[int, int], ...]

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
        population: individuals of a generation.
        parents: the best, from which the next generation comes.
        mutants: children by mutation in each generation.
        crossovers: children of two parents in each generation.
        generations: after the first.
        racing: give up on children that are clearly worse than the worst parent; not the paper's.
        risk: most that the chance may be of giving up on one that is as good, as estimated from
            the best curves so far; see `Race`.
        screening: children drawn for each one that is scored: those most like good curves are.
            1, as in the paper, to score them all.
        plain: as the paper does it: every child is scored on everything, curves that were scored
            before too.
    """

    curve: Curve = "bezier"
    control_points: int = 4
    population: int = 32
    parents: int = 12
    mutants: int = 16
    crossovers: int = 4
    generations: int = 20
    racing: bool = True
    risk: float = 0.05
    screening: int = 4
    plain: bool = False

    def __post_init__(self) -> None:
        for name in ("control_points", "population", "parents", "screening"):
            require_whole(1, **{name: getattr(self, name)})
        for name in ("mutants", "crossovers", "generations"):
            require_whole(0, **{name: getattr(self, name)})
        for name in ("racing", "plain"):
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

    @property
    def rank(self) -> tuple[float, float]:
        """By fitness; the likelihood of the answers decides between equals."""
        return self.fitness, self.outcome.log_likelihood or 0.0


def evolve(
    settings: CurveSearch, num_layers: int, seed: int, score: Scoring
) -> list[tuple[Genome, Outcome]]:
    """Genomes that were scored completely, the fittest first.

    Args:
        settings: of the search.
        num_layers: of the model.
        seed: the same seed and outcomes give the same search.
        score: fitness of genomes.

    Raises:
        CalibrationConfigError: more control points than layers.
    """
    settings.require_layers(num_layers)
    return _Evolution(settings, num_layers, seed, score).run()


class _Evolution:
    def __init__(self, settings: CurveSearch, num_layers: int, seed: int, score: Scoring) -> None:
        self._settings = settings
        self._layers = num_layers
        self._rng = random.Random(f"lpes {seed}")
        self._score = score
        self._curves: dict[tuple[float, ...], _Scored] = {}
        self._drawn: dict[Genome, tuple[float, ...]] = {}

    def run(self) -> list[tuple[Genome, Outcome]]:
        settings = self._settings
        last = self._layers - 1
        steps = settings.control_points - 1
        start: Genome = tuple((round(k * last / steps), _START) for k in range(steps + 1))
        first = [start]
        while len(first) < settings.population:
            first.append(self._new(partial(self._mutant, start), first))
        # The first parents have to be scored on everything before anybody can be worse than they.
        self._add(first[: settings.parents])
        self._add(first[settings.parents :])
        for _ in range(settings.generations):
            parents = self._best()[: settings.parents]
            self._add(self._children(parents))
        return [(each.genome, each.outcome) for each in self._best()]

    def _children(self, parents: Sequence[_Scored]) -> list[Genome]:
        settings = self._settings
        drawn = 1 if settings.plain else settings.screening
        children: list[Genome] = []
        for _ in range(drawn * settings.mutants):
            children.append(self._new(partial(self._child, parents), children))
        for _ in range(drawn * settings.crossovers):
            # The better child is kept by selection: the worse one has no advantage from having
            # been scored.
            children.extend(self._crossed(parents))
        return self._screened(children) if drawn > 1 else children

    def _screened(self, children: Sequence[Genome]) -> list[Genome]:
        """Of children whose curves were not scored yet, as many as a generation has."""
        settings = self._settings
        new = self._unscored(children)
        known = {curve: scored.rank for curve, scored in self._curves.items()}
        ranks = expected_ranks([self._curve(each) for each in new], known)
        best_first = sorted(zip(ranks, new, strict=True), key=lambda pair: -pair[0])  # stable
        return [each for _, each in best_first[: settings.mutants + 2 * settings.crossovers]]

    def _curve(self, genome: Genome) -> tuple[float, ...]:
        """The factors of a genome, worked out once."""
        if genome not in self._drawn:
            self._drawn[genome] = self._settings.factors(genome, self._layers)
        return self._drawn[genome]

    def _best(self) -> list[_Scored]:
        complete = [each for each in self._curves.values() if each.outcome.complete]
        return sorted(complete, key=lambda each: each.rank, reverse=True)  # stable: older first

    def _add(self, genomes: Sequence[Genome]) -> None:
        settings = self._settings
        if not settings.plain:
            genomes = self._unscored(genomes)
        if not genomes:
            return
        race = self._race() if settings.racing and not settings.plain else None
        outcomes = self._score(genomes, race)
        for genome, outcome in zip(genomes, outcomes, strict=True):
            curve = self._curve(genome)
            dropped = race if not outcome.complete else None
            fitness = dropped.expected(outcome.right) if dropped else outcome.score
            self._curves.setdefault(curve, _Scored(genome, outcome, fitness))

    def _race(self) -> Race | None:
        """Against the worst parent; none before there are enough."""
        best = [each.outcome.right for each in self._best()]
        if len(best) < self._settings.parents or not best[0]:
            return None
        worst = best[self._settings.parents - 1]
        # Children are like their parents, not like what the search began with.
        known = tuple(best[: _KNOWN * self._settings.parents])
        return Race(reference=worst, known=known, risk=self._settings.risk)

    def _unscored(self, genomes: Sequence[Genome]) -> list[Genome]:
        """One genome of each curve that was not scored yet."""
        of_curve = {self._curve(each): each for each in reversed(genomes)}
        new = [genome for curve, genome in of_curve.items() if curve not in self._curves]
        return new[::-1]

    def _new(self, draw: Callable[[], Genome], others: Sequence[Genome]) -> Genome:
        """A genome whose curve was not scored yet, if a few draws find one."""
        genome = draw()
        if self._settings.plain:
            return genome
        waiting = {self._curve(each) for each in others}
        for _ in range(_REDRAWS):
            curve = self._curve(genome)
            if curve not in self._curves and curve not in waiting:
                break
            genome = draw()
        return genome

    def _child(self, parents: Sequence[_Scored]) -> Genome:
        return self._mutant(self._rng.choice(parents).genome)

    def _mutant(self, genome: Genome) -> Genome:
        points = list(genome)
        for k, (x, y) in enumerate(genome):
            low = points[k - 1][0] + 1 if k else 0
            high = genome[k + 1][0] - 1 if k + 1 < len(genome) else self._layers - 1
            x = min(max(x + self._rng.randint(-_REACH_X, _REACH_X), low), high)
            y = min(max(y + self._rng.randint(-_REACH_Y, _REACH_Y), _LOW), _HIGH)
            points[k] = (x, y)
        return tuple(points)

    def _crossed(self, parents: Sequence[_Scored]) -> list[Genome]:
        for _ in range(_TRIES):
            one, other = (each.genome for each in self._rng.sample(list(parents), 2))
            cut = self._rng.randrange(1, len(one))
            children = [one[:cut] + other[cut:], other[:cut] + one[cut:]]
            valid = [each for each in children if _rises(each)]
            if valid:
                return valid
        return []


def _rises(genome: Genome) -> bool:
    return all(left[0] < right[0] for left, right in pairwise(genome))
