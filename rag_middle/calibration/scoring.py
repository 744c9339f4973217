"""Candidates in, outcomes out: from the file of a search where it has them, else from workers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective, Outcome
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.files import reason
from rag_middle.generation.sharing import load_copy
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName
from rag_middle.workers import Workers

#: Called with how many scores there are, and how many there will be at most: of the unmodified
#: model, of the candidates, and of the two methods on held-out questions.
ScoringProgress = Callable[[int, int], None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One method to score on ``examples[start:stop]``, by the objective's criterion or another."""

    method: Method
    start: int = 0
    stop: int | None = None
    criterion: Criterion | None = None


Team = Workers[Job, Outcome]
#: Creates the workers that score these examples by this criterion.
MakeTeam = Callable[[Sequence[Example], Criterion], Team]


def score_job(objective: Objective, job: Job) -> Outcome:
    """The outcome of a job.

    Raises:
        ConfigError: the objective returned a number that is not finite.
    """
    if not isinstance(objective, ExampleObjective):
        score = float(objective(job.method))
        if not isfinite(score):
            raise ConfigError(
                f"The objective returned {score!r} for {job.method!r}: return a finite number, a "
                "very low one for settings that must not win."
            )
        return Outcome(score=score)
    return objective.outcome(job.method, job.start, job.stop, criterion=job.criterion)


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
        if path is None:
            return
        with _state_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            first_line = json.dumps({"identity": identity}) + "\n"
            if first_line.encode().startswith(content):  # new, or killed in its first line
                path.write_text(first_line, encoding="utf-8")
                return
            # The last line is torn where the search was killed: its candidate is scored again.
            whole = content[: content.rfind(b"\n") + 1]
            header, *entries = map(json.loads, whole.splitlines())
            before, now = header["identity"], json.loads(json.dumps(identity))
            different = [name for name in now if before.get(name) != now[name]]
            if different:
                raise FileFormatError(
                    f"{path} is the state of another search: it differs in "
                    f"{', '.join(different)}. Continue that one with its own settings, choose "
                    "another folder (--out), or delete the file."
                )
            self.outcomes = {entry["key"]: Outcome(**entry["outcome"]) for entry in entries}
            os.truncate(path, len(whole))

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome.

        Raises:
            FileFormatError: the file cannot be written.
        """
        if self._path is not None:
            line = json.dumps({"key": key, "outcome": asdict(outcome)}) + "\n"
            with _state_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self.outcomes[key] = outcome


@contextmanager
def _state_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileFormatError(
            f"The state of the search cannot be kept in {str(path)!r} ({reason(error)}). Correct "
            "that or choose another folder (--out); then run it again to go on."
        ) from error
    except FileFormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):  # of what is read
        raise FileFormatError(
            f"{path} is not the state of a search, or is damaged. Choose another folder (--out), "
            "or delete the file to search from the start."
        ) from None


class Evaluator:
    """Scores candidates and remembers in which order they were asked for.

    Args:
        examples: how many the search has, which are the first of the team's.

    Attributes:
        max_scores: for `progress`; set once the search is known.
    """

    def __init__(
        self,
        team: Team,
        journal: Journal,
        *,
        examples: int = 0,
        progress: ScoringProgress | None = None,
    ) -> None:
        self._team = team
        self._journal = journal
        self._examples = examples
        self._progress = progress
        self._candidates: dict[str, Candidate] = {}
        self.max_scores = 0

    def outcomes(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """An outcome for every candidate, in order; equal ones are scored once."""
        for candidate in candidates:
            self._candidates.setdefault(candidate.key, candidate)
        self._run({c.key: Job(method=c.method, stop=self._examples) for c in candidates})
        return [self._journal.outcomes[candidate.key] for candidate in candidates]

    def held_out(self, methods: Mapping[str, Method], criterion: Criterion) -> list[Outcome]:
        """Outcomes of methods on the examples after those of the search."""
        return self._run(
            {
                f"held out: {key}": Job(method=method, start=self._examples, criterion=criterion)
                for key, method in methods.items()
            }
        )

    @property
    def trace(self) -> list[dict[str, Any]]:
        """Every candidate with its score, in the order in which the search asked for them.

        It follows from seed and scores alone, whatever the workers.
        """
        return [
            {"candidate": key, **candidate.details, "score": self._journal.outcomes[key].score}
            for key, candidate in self._candidates.items()
        ]

    def _run(self, jobs: Mapping[str, Job]) -> list[Outcome]:
        missing = [key for key in jobs if key not in self._journal.outcomes]
        self._report()
        for index, outcome in self._team.results([jobs[key] for key in missing]):
            self._journal.add(missing[index], outcome)
            self._report()
        return [self._journal.outcomes[key] for key in jobs]

    def _report(self) -> None:
        if self._progress:
            known = len(self._journal.outcomes)
            self._progress(known, max(self.max_scores, known))
