"""Candidates in, outcomes out: from the journal where it has them, else from the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from rag_middle.calibration.jobs import Job, Team, scored
from rag_middle.calibration.journal import Journal
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.errors import FileFormatError
from rag_middle.methods import Method

#: Called with how many candidates have been scored, and how many there will be at most; the check
#: of two methods on held-out examples counts as two.
ScoringProgress = Callable[[int, int], None]

_COMPARED = 3  # scores of an objective; two may agree by chance, or by construction
_TOLERANCE = 1e-4  # of a score, relative: other hardware changes last digits


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try.

    Attributes:
        key: short description of the settings; equal settings have equal keys.
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
        progress: called after every candidate.

    Attributes:
        max_candidates: for `progress`; set once the search is known.
    """

    def __init__(
        self,
        workers: Team,
        journal: Journal,
        *,
        examples: int | None,
        progress: ScoringProgress | None = None,
    ) -> None:
        self._workers = workers
        self._journal = journal
        self._examples = examples
        self._progress = progress
        self._candidates: dict[str, Candidate] = {}
        self._asked: set[str] = set()  # keys of jobs, those of the held-out check included
        # Examples are named in a journal; a function can only be told from another by its scores.
        self._to_compare = min(_COMPARED, len(journal)) if examples is None else 0
        self.max_candidates = 0

    def outcomes(
        self, candidates: Sequence[Candidate], race: Race | None = None, *, group_size: int = 1
    ) -> list[Outcome]:
        """An outcome for every candidate, in order; equal ones are scored once.

        Args:
            candidates: any number.
            race: when to give a candidate up.
            group_size: how many are scored at a time, where the objective has examples: useful
                where candidates can share the prefill of a prompt.
        """
        for candidate in candidates:
            self._candidates.setdefault(candidate.key, candidate)
        return self._run(
            [
                Job(
                    key=candidate.key,
                    method=candidate.method,
                    stop=self._examples,
                    race=race,
                    group_size=1 if self._examples is None else group_size,
                )
                for candidate in candidates
            ]
        )

    def held_out(
        self, methods: dict[str, Method], stop: int, criterion: Criterion
    ) -> list[Outcome]:
        """Outcomes of methods on the examples after those of the search, up to `stop`."""
        return self._run(
            [
                Job(
                    key=f"held out: {key}",
                    method=method,
                    start=self._examples or 0,
                    stop=stop,
                    criterion=criterion,
                )
                for key, method in methods.items()
            ]
        )

    @property
    def trace(self) -> list[dict[str, Any]]:
        """Every candidate with its score, in the order in which the search asked for them.

        Independent of workers and timing: it follows from seed and scores alone. The score of a
        candidate that was dropped is over the prompts that it was scored on, which are those on
        which candidates differ most.
        """
        return [
            {
                "candidate": key,
                **candidate.details,
                "score": outcome.score,
                "prompts": outcome.prompts or None,
                "complete": outcome.complete,
            }
            for key, candidate in self._candidates.items()
            for outcome in [self._journal[key]]
        ]

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        self._asked.update(job.key for job in jobs)
        self._compare(jobs)
        missing = {job.key: job for job in jobs if job.key not in self._journal}
        self._report_progress()
        for job, outcome in scored(self._workers, list(missing.values())):
            self._journal.add(job.key, outcome)
            self._report_progress()
        return [self._of_journal(job) for job in jobs]

    def _compare(self, jobs: Sequence[Job]) -> None:
        """Check that a search goes on with its own objective: its first scores come out again.

        Raises:
            FileFormatError: they differ.
        """
        known = [job for job in jobs if job.key in self._journal][: self._to_compare]
        self._to_compare -= len(known)
        for job, outcome in scored(self._workers, known):
            before = self._journal[job.key].score
            if not isclose(outcome.score, before, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2):
                raise FileFormatError(
                    f"The state is that of a search by another objective: the score of {job.key!r} "
                    f"is {before:.6g} there, and {outcome.score:.6g} now. Continue that search "
                    "with its own objective, choose another file, or delete it."
                )

    def _of_journal(self, job: Job) -> Outcome:
        """The outcome, if it can be one of this job: a file with whole lines may still be wrong."""
        outcome = self._journal[job.key]
        prompts = 0 if job.stop is None else job.stop - job.start
        possible = len(outcome.right) == prompts
        possible &= outcome.complete == (outcome.prompts == prompts)
        possible &= outcome.complete or job.criterion is None  # held-out prompts are all scored
        if not possible:
            raise FileFormatError(
                f"The state of the search is damaged: for {job.key!r} it holds {outcome.prompts} "
                f"verdicts ({outcome.right!r}), and there are {prompts} prompts. Delete the file "
                "to search from the start."
            )
        return outcome

    def _report_progress(self) -> None:
        if self._progress:
            scored = sum(key in self._journal for key in self._asked)
            self._progress(scored, max(self.max_candidates, len(self._asked)))
