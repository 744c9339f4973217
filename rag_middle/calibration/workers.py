"""Where candidates are scored: in this process, in several, or on a Ray cluster.

A job's outcome depends on nothing but the job, so it does not matter who does it, nor when.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from math import ceil
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, Literal

import torch
from transformers.utils.logging import disable_progress_bar

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.errors import MissingExtraError, RagMiddleError, WorkerError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method

__all__ = ["FromDisk", "InProcess", "Job", "Processes", "RayWorkers", "Workers", "threads"]

_DEATHS_IN_A_ROW = 3

#: Makes the objective where it is used; for other processes it must be importable there.
Opening = Callable[[], Objective]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One candidate to score.

    Attributes:
        key: its name in the journal.
        method: what is scored.
        start: first example.
        stop: the one after the last; None for an objective without examples.
        race: when to give up.
        together: how many jobs like this one a worker may do at a time, if it has examples.
        criterion: what the score is, if not the objective's own.
    """

    key: str
    method: Method
    start: int = 0
    stop: int | None = None
    race: Race | None = None
    together: int = 1
    criterion: Criterion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FromDisk:
    """Loads a model in a worker and scores examples with it.

    Attributes:
        model: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`.
        examples: as `ExampleObjective` takes them, like the rest.
        criterion: see there.
        max_batch_size: see there.
        template: see there.
    """

    model: str
    examples: tuple[Example, ...]
    criterion: Criterion
    options: Mapping[str, Any] = field(default_factory=dict)
    max_batch_size: int = 8
    template: Literal["auto", "chat", "raw"] = "auto"

    def __call__(self) -> ExampleObjective:
        return ExampleObjective(
            RagMiddleModel.from_pretrained(self.model, **self.options),
            self.examples,
            criterion=self.criterion,
            max_batch_size=self.max_batch_size,
            template=self.template,
        )


#: Jobs that are done at a time: one, or several on the same examples without a race.
Group = tuple[Job, ...]


def groups(jobs: Sequence[Job], workers: int = 1) -> list[Group]:
    """Jobs, in order, by what is done at a time; no worker is left without for it."""
    alike = groupby(
        jobs, key=lambda job: (job.start, job.stop, job.race, job.together, job.criterion)
    )
    found: list[Group] = []
    for (_, _, race, together, _), each in alike:
        members = tuple(each)
        size = 1 if race else max(1, min(together, ceil(len(members) / workers)))
        found += [members[at : at + size] for at in range(0, len(members), size)]
    return found


def done(objective: Objective, group: Group) -> list[Outcome]:
    """The outcomes of a group."""
    first = group[0]
    if not isinstance(objective, ExampleObjective) or first.stop is None:
        return [Outcome(score=float(objective(job.method))) for job in group]
    span, by = (first.start, first.stop), first.criterion
    if len(group) == 1:
        return [objective.outcome(first.method, *span, first.race, criterion=by)]
    return objective.outcomes([job.method for job in group], *span, criterion=by)


class Workers(ABC):
    """Scores jobs.

    Attributes:
        count: jobs, or groups of them, that are done at the same time.
    """

    count: int = 1

    @abstractmethod
    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its outcome, as they become known."""

    def close(self) -> None:
        """Give back what was taken."""
        return


class InProcess(Workers):
    """One after the other, here.

    Args:
        objective: that scores.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for group in groups(jobs):
            yield from zip(group, done(self._objective, group), strict=True)


class Processes(Workers):
    """Several processes of this machine, each with a model of its own.

    Where one dies, all are started again and do what was not done.

    Args:
        opening: makes the objective in each of them.
        count: of processes.
        threads_each: of PyTorch in each process.
    """

    def __init__(self, opening: Opening, count: int, threads_each: int) -> None:
        self._opening = opening
        self.count = count
        self._threads = threads_each
        self._pool: ProcessPoolExecutor | None = None

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        left = {job.key: job for job in jobs}
        deaths = 0
        while left:
            try:
                with _interrupts_held():
                    futures: dict[Future[list[Outcome]], Group] = {
                        self._started().submit(_work, group): group
                        for group in groups(list(left.values()), self.count)
                    }
                for future in as_completed(futures):
                    outcomes = future.result()
                    deaths = 0
                    for job, outcome in zip(futures[future], outcomes, strict=True):
                        del left[job.key]
                        yield job, outcome
            except BrokenProcessPool as error:
                self.close()
                deaths += 1
                if deaths >= _DEATHS_IN_A_ROW:
                    raise WorkerError(
                        f"Worker processes ended {deaths} times in a row without a result "
                        f"({error}). Memory is the usual reason: use fewer workers. The search "
                        "continues from where it stands when it is started again."
                    ) from error

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.count,
                # A forked process would inherit locks of threads that it does not have.
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_open,
                initargs=(self._opening, self._threads),
            )
        return self._pool


class _Worker:
    """Scores in a process of its own.

    The objective is made for the first job, so that an error in making it reaches the caller as
    what it is, and not as a process that ended.
    """

    def __init__(self, opening: Opening, threads_each: int) -> None:
        torch.set_num_threads(threads_each)
        self._opening = opening
        self._objective: Objective | None = None

    def outcomes(self, group: Group) -> list[Outcome]:
        if self._objective is None:
            self._objective = self._opening()
        return done(self._objective, group)


_worker: _Worker | None = None  # of this process


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end of the block, and in processes started here until `_open`.

    Who imports PyTorch would answer it with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which, started in the block, would let Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open(opening: Opening, threads_each: int) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with_parent()
    disable_progress_bar()  # of loading weights: the command has one of its own
    _worker = _Worker(opening, threads_each)


def _work(group: Group) -> list[Outcome]:
    if _worker is None:
        raise RuntimeError("this process was not opened")
    return _worker.outcomes(group)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, even if that one was killed.

    The pool's queue stays open in each of its workers, so none of them would notice, and each
    holds a model.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, name="end with parent", daemon=True).start()


class RayWorkers(Workers):
    """Actors of a Ray cluster, or of this machine where no cluster is joined.

    Ray starts an actor that dies again, and its job with it.

    Args:
        opening: makes the objective in each of them.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        address: of a running cluster; None for that in ``RAY_ADDRESS``, else for this machine.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(
        self, opening: Opening, count: int, threads_each: int, address: str | None = None
    ) -> None:
        try:
            # By its name: untyped in parts, and not installed everywhere.
            ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtraError("backend='ray'", package="ray", extra="ray") from error
        self._ray = ray
        self.count = count
        self._started_here = not ray.is_initialized()
        if self._started_here:
            here = {} if address else {"num_cpus": count * threads_each}
            ray.init(address=address, include_dashboard=False, log_to_driver=False, **here)
        remote = ray.remote(num_cpus=threads_each, max_restarts=-1, max_task_retries=3)(_Worker)
        self._actors = [remote.remote(opening, threads_each) for _ in range(count)]

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        waiting = groups(jobs, self.count)[::-1]
        idle = list(self._actors)
        running: dict[Any, tuple[Any, Group]] = {}
        while waiting or running:
            while waiting and idle:
                actor, group = idle.pop(), waiting.pop()
                running[actor.outcomes.remote(group)] = (actor, group)
            [finished], _ = self._ray.wait(list(running), num_returns=1)
            actor, group = running.pop(finished)
            try:
                outcomes: list[Outcome] = self._ray.get(finished)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RagMiddleError):
                    raise error.cause from None  # without Ray's account of where it happened
                raise
            except self._ray.exceptions.RayActorError as error:
                raise WorkerError(
                    f"A Ray worker ended again and again ({type(error).__name__}). Memory is the "
                    "usual reason: use fewer workers. The search continues from where it stands "
                    "when it is started again."
                ) from error
            idle.append(actor)
            yield from zip(group, outcomes, strict=True)

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch with `count` threads: sums depend on how they are cut among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
