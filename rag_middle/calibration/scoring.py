"""Who scores candidates, and the file that keeps their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from rag_middle.calibration.objective import (
    Criterion,
    Example,
    ExampleObjective,
    Objective,
    Outcome,
)
from rag_middle.calibration.search import Candidate
from rag_middle.errors import ConfigError
from rag_middle.evaluation.records import Journal
from rag_middle.generation.sharing import ModelCopy
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName
from rag_middle.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringJob:
    """One method to score on ``examples[start:stop]``, by the objective's criterion or another."""

    method: Method
    start: int = 0
    stop: int | None = None
    criterion: Criterion | None = None


HELD_OUT = "held out: "  # before the keys of outcomes on held-out examples
Team = Workers[ScoringJob, Outcome]
#: Creates the workers that score these examples by this criterion.
MakeTeam = Callable[[Sequence[Example], Criterion], Team]


def score_job(objective: Objective, job: ScoringJob) -> Outcome:
    """The outcome of a job.

    Raises:
        ConfigError: the objective returned a number that is not finite.
    """
    if isinstance(objective, ExampleObjective):
        return objective.outcome(job.method, job.start, job.stop, criterion=job.criterion)
    score = float(objective(job.method))
    if not isfinite(score):
        raise ConfigError(
            f"The objective returned {score!r} for {job.method!r}: return a finite number, a very "
            "low one for settings that must not win."
        )
    return Outcome(score=score)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDisk(ModelCopy):
    """Loads a model in a worker, which then scores jobs on these examples."""

    examples: tuple[Example, ...]
    criterion: Criterion
    max_batch_size: int = 8
    template: TemplateName = "auto"

    def __call__(self) -> Callable[[ScoringJob], Outcome]:
        objective = ExampleObjective(
            self.load(),
            self.examples,
            criterion=self.criterion,
            max_batch_size=self.max_batch_size,
            template=self.template,
        )
        return partial(score_job, objective)


class Outcomes(dict[str, Outcome]):
    """Outcomes by key of the candidate; each is on the disk before it is used.

    A search asks for the same candidates in the same order whenever the outcomes are the same, so
    one that was stopped goes on when it is started again: what is here is not computed again.

    Args:
        path: of the file; None to keep outcomes in memory.
        identity: of the search, JSON-ready.

    Raises:
        FileFormatError: as `Journal`.
    """

    def __init__(self, path: str | Path | None, identity: Mapping[str, Any]) -> None:
        super().__init__()
        self._journal = Journal(path, identity, self._read)

    def _read(self, fields: dict[str, Any]) -> None:
        self[fields["key"]] = Outcome(**fields["outcome"])

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome."""
        self._journal.add([{"key": key, "outcome": asdict(outcome)}])
        self[key] = outcome


@dataclass(frozen=True, slots=True)
class Scorer:
    """Outcomes of candidates: from the file of the search where it has them, else from workers.

    Attributes:
        examples: how many the search has, which are the first of the team's.
        max_scores: for `progress`, which is called after every score with how many there are.
    """

    team: Team
    outcomes: Outcomes
    examples: int
    max_scores: int
    progress: Callable[[int, int], None] | None

    def searched(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """An outcome for every candidate, in order; equal ones are scored once."""
        return self._outcomes(candidates, "", stop=self.examples)

    def held_out(self, candidates: Sequence[Candidate], criterion: Criterion) -> list[Outcome]:
        """Outcomes on the examples after those of the search."""
        return self._outcomes(candidates, HELD_OUT, start=self.examples, criterion=criterion)

    def _outcomes(self, candidates: Sequence[Candidate], kind: str, **part: Any) -> list[Outcome]:
        known = self.outcomes
        methods = {kind + candidate.key: candidate.method for candidate in candidates}
        missing = [key for key in methods if key not in known]
        self._report()
        jobs = [ScoringJob(method=methods[key], **part) for key in missing]
        for index, outcome in self.team.results(jobs):
            self.outcomes.add(missing[index], outcome)
            self._report()
        return [known[kind + candidate.key] for candidate in candidates]

    def _report(self) -> None:
        if self.progress:
            known = len(self.outcomes)
            self.progress(known, max(self.max_scores, known))
