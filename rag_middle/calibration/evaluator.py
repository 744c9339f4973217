"""Candidates in, outcomes out: from the journal where it has them, else from the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_middle.calibration.journal import Journal
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.calibration.workers import Job, Workers
from rag_middle.methods import Method

__all__ = ["Candidate", "Evaluator", "Progress"]

#: Told how many candidates have been scored, and how many there will be at most.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try.

    Attributes:
        key: what they are, in short; equal settings have equal keys.
        method: with these settings.
        details: for the trace in the profile.
    """

    key: str
    method: Method
    details: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


class Evaluator:
    """Scores candidates and remembers in which order they were asked for.

    Args:
        workers: that score.
        journal: of the search.
        examples: how many the search has; None where the objective has none.
        progress: told after every candidate.
    """

    def __init__(
        self,
        workers: Workers,
        journal: Journal,
        *,
        examples: int | None,
        progress: Progress | None = None,
    ) -> None:
        self._workers = workers
        self._journal = journal
        self._examples = examples
        self._progress = progress
        self._scored: dict[str, Candidate] = {}
        self.expected = 0

    def outcomes(
        self, candidates: Sequence[Candidate], race: Race | None = None, *, together: int = 1
    ) -> list[Outcome]:
        """An outcome for every candidate, in order; equal ones are scored once.

        Args:
            candidates: any number.
            race: when to give a candidate up.
            together: how many are scored at a time, where the objective has examples: of use where
                candidates can share the model's reading of a prompt.
        """
        for candidate in candidates:
            self._scored.setdefault(candidate.key, candidate)
        self._run(
            [
                Job(
                    key=each.key,
                    method=each.method,
                    stop=self._examples,
                    race=race,
                    together=1 if self._examples is None else together,
                )
                for each in candidates
            ]
        )
        return [self._journal[each.key] for each in candidates]

    def held_out(self, named: dict[str, Method], stop: int, criterion: Criterion) -> list[Outcome]:
        """Outcomes of methods on the examples after those of the search, up to `stop`."""
        jobs = [
            Job(
                key=f"held out: {key}",
                method=method,
                start=self._examples or 0,
                stop=stop,
                criterion=criterion,
            )
            for key, method in named.items()
        ]
        self._run(jobs)
        return [self._journal[job.key] for job in jobs]

    @property
    def trace(self) -> list[dict[str, Any]]:
        """Every candidate with its score, in the order in which the search asked for them.

        The same whoever scored them when: what is in it comes from seed and scores alone. The
        score of a candidate that was dropped is over the prompts that it was tried on, which are
        the hardest to tell.
        """
        found = []
        for key, candidate in self._scored.items():
            outcome = self._journal[key]
            found.append(
                {
                    "candidate": key,
                    **candidate.details,
                    "score": outcome.score,
                    "prompts": outcome.prompts or None,
                    "complete": outcome.complete,
                }
            )
        return found

    def _run(self, jobs: Sequence[Job]) -> None:
        missing = {job.key: job for job in jobs if job.key not in self._journal}
        self._tell()
        for job, outcome in self._workers.outcomes(list(missing.values())):
            self._journal.add(job.key, outcome)
            self._tell()

    def _tell(self) -> None:
        if self._progress:
            done = sum(key in self._journal for key in self._scored)
            self._progress(done, max(self.expected, len(self._scored)))
