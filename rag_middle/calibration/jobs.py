"""Candidates to score, and the work of whoever scores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import ceil
from typing import Any

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.errors import ConfigError
from rag_middle.generation.sharing import load_copy
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName
from rag_middle.workers import Workers

#: Creates the objective where it is used; see `MakeWork`.
ObjectiveFactory = Callable[..., Objective]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One candidate to score.

    Attributes:
        key: its name in the journal.
        method: what is scored.
        start: first example.
        stop: the one after the last; None for an objective without examples.
        race: when to give up.
        group_size: how many jobs like this one may be scored at a time.
        criterion: what the score is, if not the objective's own.
    """

    key: str
    method: Method
    start: int = 0
    stop: int | None = None
    race: Race | None = None
    group_size: int = 1
    criterion: Criterion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDisk:
    """Loads a model in a worker and creates an `ExampleObjective`, which takes the other fields.

    Attributes:
        model: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`; a worker's own device stands in for theirs.
        digests: what tells the model from others (`model_digests`), so that a worker that finds
            another one refuses it; without any, nothing is checked.
    """

    model: str
    examples: tuple[Example, ...]
    criterion: Criterion
    options: Mapping[str, Any] = field(default_factory=dict)
    max_batch_size: int = 8
    template: TemplateName = "auto"
    digests: Mapping[str, str | None] = field(default_factory=dict)

    def __call__(self, device: str | None = None) -> ExampleObjective:
        return ExampleObjective(
            load_copy(self.model, self.options, device=device, digests=self.digests),
            self.examples,
            criterion=self.criterion,
            max_batch_size=self.max_batch_size,
            template=self.template,
        )


#: Jobs that are scored at a time: one, or several on the same examples without a race.
Group = tuple[Job, ...]
Team = Workers[Group, list[Outcome]]
#: Creates the workers that score these examples by this criterion.
MakeTeam = Callable[[Sequence[Example], Criterion], Team]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores groups of jobs in a worker.

    Attributes:
        make_objective: called in the worker.
    """

    make_objective: ObjectiveFactory

    def __call__(self, device: str | None = None) -> Callable[[Group], list[Outcome]]:
        devices = () if device is None else (device,)
        return partial(score_group, self.make_objective(*devices))


def groups(jobs: Sequence[Job], workers: int = 1) -> list[Group]:
    """Jobs, in order, in groups that are scored at a time, small enough for all workers to work."""

    def shared_settings(job: Job) -> tuple[Any, ...]:
        return job.start, job.stop, job.race, job.group_size, job.criterion

    grouped: list[Group] = []
    for _, members in groupby(jobs, key=shared_settings):
        alike = tuple(members)
        size = 1 if alike[0].race else min(alike[0].group_size, ceil(len(alike) / workers))
        grouped += [alike[at : at + size] for at in range(0, len(alike), size)]
    return grouped


def scored(workers: Team, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
    """Each job with its outcome, in the order of completion."""
    grouped = groups(jobs, workers.count)
    for index, outcomes in workers.results(grouped):
        yield from zip(grouped[index], outcomes, strict=True)


def score_group(objective: Objective, group: Group) -> list[Outcome]:
    """The outcomes of a group.

    Raises:
        ConfigError: the objective returned something else than a finite number.
    """
    first = group[0]
    if not isinstance(objective, ExampleObjective) or first.stop is None:
        return [_custom_outcome(objective, job.method) for job in group]
    span, criterion = (first.start, first.stop), first.criterion
    if len(group) == 1:
        return [objective.outcome(first.method, *span, first.race, criterion=criterion)]
    return objective.outcomes([job.method for job in group], *span, criterion=criterion)


def _custom_outcome(objective: Objective, method: Method) -> Outcome:
    score = objective(method)
    try:
        return Outcome(score=float(score))
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"The objective returned {score!r} for {method!r}, and a search compares finite "
            "numbers. Return a very low one for settings that must not win."
        ) from None
