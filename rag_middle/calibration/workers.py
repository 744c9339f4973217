"""Where candidates are scored: in this process, in several, or on a Ray cluster.

A job's outcome depends on nothing but the job, so it does not matter who does it, nor when.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import groupby
from math import ceil
from multiprocessing import resource_tracker
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from transformers.utils.logging import disable_progress_bar

from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.errors import CalibrationConfigError, MissingExtraError, RagMiddleError, WorkerError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName
from rag_middle.wording import Argument, counted

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

__all__ = ["FromDisk", "InProcess", "Job", "Processes", "RayWorkers", "Workers", "torch_threads"]

_MAX_DEATHS = 3  # in a row, without a result

#: Creates the objective where it is used; other processes must be able to import it. It is called
#: with the worker's device where workers have devices, else without arguments.
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
    """

    model: str
    examples: tuple[Example, ...]
    criterion: Criterion
    options: Mapping[str, Any] = field(default_factory=dict)
    max_batch_size: int = 8
    template: TemplateName = "auto"

    def __call__(self, device: str | None = None) -> ExampleObjective:
        options = dict(self.options) if device is None else {**self.options, "device": device}
        return ExampleObjective(
            RagMiddleModel.from_pretrained(self.model, **options),
            self.examples,
            criterion=self.criterion,
            max_batch_size=self.max_batch_size,
            template=self.template,
        )


#: Jobs that are scored at a time: one, or several on the same examples without a race.
Group = tuple[Job, ...]


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


def score_group(objective: Objective, group: Group) -> list[Outcome]:
    """The outcomes of a group.

    Raises:
        CalibrationConfigError: the objective returned something else than a finite number.
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
        raise CalibrationConfigError(
            f"The objective returned {score!r} for {method!r}, and a search compares finite "
            "numbers. Return a very low one for settings that must not win."
        ) from None


class Workers(ABC):
    """Scores jobs.

    Attributes:
        count: of groups that are scored at the same time.
    """

    count: int = 1

    @abstractmethod
    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its outcome, in the order of completion."""

    def close(self) -> None:
        """Release processes and other resources."""
        return


class InProcess(Workers):
    """One group after the other, in this process.

    Args:
        objective: that scores.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        for group in groups(jobs):
            yield from zip(group, score_group(self._objective, group), strict=True)


class Processes(Workers):
    """Several processes of this machine, each with a model of its own.

    If one dies, all are started again and score the jobs that are left.

    Args:
        make_objective: called in each process.
        count: of processes.
        threads_each: of PyTorch in each process.
        devices: one for each process (`worker_devices`), which `make_objective` is called with.

    Raises:
        CalibrationConfigError: another number of devices than of processes.
    """

    def __init__(
        self,
        make_objective: ObjectiveFactory,
        count: int,
        threads_each: int,
        devices: Sequence[str] = (),
    ) -> None:
        if devices and len(devices) != count:
            raise CalibrationConfigError(
                f"There are {count} worker processes and {len(devices)} devices: give one device "
                "for each, or none."
            )
        self._worker_args = make_objective, threads_each
        self._devices = tuple(devices)
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        left = {job.key: job for job in jobs}
        deaths = 0
        while left:
            try:
                with _interrupts_blocked():
                    if self._pool is None:
                        self._pool = self._start()
                    futures: dict[Future[list[Outcome]], Group] = {
                        self._pool.submit(_score_in_worker, group): group
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
                if deaths >= _MAX_DEATHS:
                    raise WorkerError(
                        f"Worker processes ended {deaths} times in a row without a result "
                        f"({error}). Memory is the usual reason: use fewer workers. The search "
                        "continues from where it stands when it is started again."
                    ) from error

    def _start(self) -> ProcessPoolExecutor:
        # A forked process would inherit locks of threads it does not have.
        context = multiprocessing.get_context("spawn")
        devices = None
        if self._devices:
            devices = context.SimpleQueue()  # of which every process takes one when it starts
            for device in self._devices:
                devices.put(device)
        return ProcessPoolExecutor(
            self.count,
            mp_context=context,
            initializer=_start_worker,
            initargs=(*self._worker_args, devices),
        )

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class _Worker:
    """Scores in a process of its own.

    The objective is created for the first job, so that an error in creating it reaches the caller
    as itself, and not as a process that ended.
    """

    def __init__(
        self, make_objective: ObjectiveFactory, threads_each: int, device: str | None = None
    ) -> None:
        torch.set_num_threads(threads_each)
        if device is not None:
            make_objective = partial(make_objective, device)
        self._make_objective = make_objective
        self._objective: Objective | None = None

    def outcomes(self, group: Group) -> list[Outcome]:
        if self._objective is None:
            self._objective = self._make_objective()
        return score_group(self._objective, group)


_worker: _Worker | None = None  # of this process


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C until the end of the block, and in processes started here until `_start_worker`.

    A process that is importing PyTorch would answer it with a traceback, and so would one whose
    parent stopped before it had sent all there is to know.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which, started in the block, would let Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask is this thread's. Any other thread may take the signal, and then the main one raises.
    handler = None
    came: list[int] = []
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _start_worker(
    make_objective: ObjectiveFactory, threads_each: int, devices: SimpleQueue[str] | None
) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _end_with_parent()
    disable_progress_bar()  # of loading weights: the command has one of its own
    _worker = _Worker(make_objective, threads_each, None if devices is None else devices.get())


def _score_in_worker(group: Group) -> list[Outcome]:
    if _worker is None:
        raise RuntimeError("_start_worker was not called in this process")
    return _worker.outcomes(group)


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even if that one was killed.

    The pool's queue stays open in each of its workers, so none of them would notice, and each
    holds a model.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait_for_parent() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait_for_parent, name="end with parent", daemon=True).start()


class RayWorkers(Workers):
    """Actors of a Ray cluster, or of this machine where no cluster is joined.

    Ray restarts an actor that dies, and its job.

    Args:
        make_objective: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        address: of a running cluster; None for that in ``RAY_ADDRESS``, else for this machine.
        gpus_each: GPUs of each actor. Ray shows an actor no others, so `make_objective` is called
            with ``"cuda"``; without GPUs, it is called with no device.

    Raises:
        MissingExtraError: Ray is not installed.
        CalibrationConfigError: the cluster has fewer GPUs.
    """

    def __init__(
        self,
        make_objective: ObjectiveFactory,
        count: int,
        threads_each: int,
        address: str | None = None,
        gpus_each: int = 0,
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
        self._actors: list[Any] = []
        gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_each else 0
        if count * gpus_each > gpus:  # Ray would wait for more to join
            self.close()
            raise CalibrationConfigError(
                Argument("workers", count),
                f" take {counted(gpus_each, 'GPU')} each, and the Ray cluster has {gpus}: ask for "
                f"at most {max(1, gpus // gpus_each)}.",
            )
        remote = ray.remote(
            num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1, max_task_retries=3
        )(_Worker)
        device = "cuda" if gpus_each else None
        self._actors = [remote.remote(make_objective, threads_each, device) for _ in range(count)]

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
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch with `count` threads: sums depend on how they are split among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
