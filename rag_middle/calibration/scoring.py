"""Who scores candidates, and the file that keeps their outcomes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective, Outcome
from rag_middle.calibration.search import Candidate
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.files import reason
from rag_middle.generation.sharing import load_copy
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName
from rag_middle.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One method to score on ``examples[start:stop]``, by the objective's criterion or another."""

    method: Method
    start: int = 0
    stop: int | None = None
    criterion: Criterion | None = None


HELD_OUT = "held out: "  # before the keys of outcomes on held-out examples
Team = Workers[Job, Outcome]
#: Creates the workers that score these examples by this criterion.
MakeTeam = Callable[[Sequence[Example], Criterion], Team]


def score_job(objective: Objective, job: Job) -> Outcome:
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
class FromDisk:
    """Loads a model in a worker, which then scores jobs on these examples.

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

    def __call__(self, device: str | None = None) -> Callable[[Job], Outcome]:
        objective = ExampleObjective(
            load_copy(self.model, self.options, device=device, digests=self.digests),
            self.examples,
            criterion=self.criterion,
            max_batch_size=self.max_batch_size,
            template=self.template,
        )
        return partial(score_job, objective)


class Journal:
    """Outcomes by candidate, as JSON lines; each is on the disk before it is used.

    A search asks for the same candidates in the same order whenever the outcomes are the same, so
    one that was stopped goes on when it is started again: what is here is not computed again.

    Args:
        path: of the file, which is created if it does not exist; None to keep outcomes in memory.
        identity: of the search, JSON-ready; must equal that in an existing file.

    Attributes:
        outcomes: by key of the candidate.

    Raises:
        FileFormatError: the file belongs to another search, is none, or cannot be written.
    """

    def __init__(self, path: Path | None = None, identity: Mapping[str, Any] | None = None) -> None:
        self._path = path
        self.outcomes: dict[str, Outcome] = {}
        content = path.read_bytes() if path and path.is_file() else b""
        if not content or path is None:
            self._write({"identity": identity})
            return
        # The last line is torn where the search was killed: its candidate is scored again.
        whole = content[: content.rfind(b"\n") + 1]
        now = json.loads(json.dumps(identity))
        try:
            header, *entries = map(json.loads, whole.splitlines())
            different = [name for name in now if header["identity"].get(name) != now[name]]
            self.outcomes = {entry["key"]: Outcome(**entry["outcome"]) for entry in entries}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise FileFormatError(
                f"{path} is not the state of a search, or is damaged. Choose another folder "
                "(--out), or delete the file to search from the start."
            ) from None
        if different:
            raise FileFormatError(
                f"{path} is the state of another search: it differs in {', '.join(different)}. "
                "Continue that one with its own settings, choose another folder (--out), or delete "
                "the file."
            )
        os.truncate(path, len(whole))

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome.

        Raises:
            FileFormatError: the file cannot be written.
        """
        self._write({"key": key, "outcome": asdict(outcome)})
        self.outcomes[key] = outcome

    def _write(self, content: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(content) + "\n")
        except OSError as error:
            raise FileFormatError(
                f"The state of the search cannot be kept in {str(self._path)!r} ({reason(error)}). "
                "Correct that or choose another folder (--out); then run it again to go on."
            ) from error


@dataclass(frozen=True, slots=True)
class Scorer:
    """Outcomes of candidates: from the file of the search where it has them, else from workers.

    Attributes:
        examples: how many the search has, which are the first of the team's.
        max_scores: for `progress`, which is called after every score with how many there are.
    """

    team: Team
    journal: Journal
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
        known = self.journal.outcomes
        methods = {kind + candidate.key: candidate.method for candidate in candidates}
        missing = [key for key in methods if key not in known]
        self._report()
        jobs = [Job(method=methods[key], **part) for key in missing]
        for index, outcome in self.team.results(jobs):
            self.journal.add(missing[index], outcome)
            self._report()
        return [known[kind + candidate.key] for candidate in candidates]

    def _report(self) -> None:
        if self.progress:
            known = len(self.journal.outcomes)
            self.progress(known, max(self.max_scores, known))
