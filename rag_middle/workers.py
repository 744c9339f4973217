"""Who does the work of a long run: this process, several (joblib's loky), or a Ray cluster.

What a task gives depends on nothing but the task, so it does not matter who does it, nor when.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import torch

from rag_middle.errors import ConfigError, RagMiddleError
from rag_middle.extras import require

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Creates, where tasks are done, the function that does one, which other processes must be able to
#: import.
MakeWork = Callable[[], Callable[[Any], Any]]

_ENDED = (
    "Memory is the usual reason: use fewer workers. What was done is kept: the same command "
    "continues from there."
)


class Workers(Generic[Task, Result]):
    """Does tasks; this one, one after the other in this process.

    Attributes:
        count: of tasks that are done at the same time.
    """

    count = 1

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """The index of each task with its result, in the order of completion."""
        for index, task in enumerate(tasks):
            yield index, self._work(task)

    def close(self) -> None:
        """Release processes and other resources."""


class Processes(Workers[Task, Result]):
    """Several processes of this machine, each with a model of its own, on the CPU.

    Args:
        make_work: called in each process.
        count: of processes.
        threads_each: of PyTorch in each process.
    """

    def __init__(self, make_work: MakeWork, count: int, threads_each: int) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self.count = count
        self._pool = ProcessPoolExecutor(
            count, initializer=_start, initargs=(make_work, threads_each)
        )

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        futures = [self._pool.submit(_do, numbered) for numbered in enumerate(tasks)]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise RagMiddleError(f"A worker process ended ({error}). {_ENDED}") from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the processes, once they have done what they are at."""
        self._pool.shutdown()


class RayWorkers(Workers[Task, Result]):
    """Actors of the Ray cluster in ``RAY_ADDRESS``, or of this machine where none is named.

    Ray starts one that dies again, on another node where its own has left, with its task.

    Args:
        make_work: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        gpus_each: GPUs of each actor, which sees no others.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: the cluster has fewer GPUs.
    """

    def __init__(
        self, make_work: MakeWork, count: int, threads_each: int, gpus_each: int = 0
    ) -> None:
        ray = self._ray = require("ray", package="ray", what="backend='ray'", extra="ray")
        self.count = count
        self._actors: list[Any] = []
        self._started_here = not ray.is_initialized()
        if self._started_here:
            # A cluster's CPUs are its own affair.
            here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": count * threads_each}
            ray.init(include_dashboard=False, log_to_driver=False, **here)
        gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_each else 0
        if count * gpus_each > gpus:  # Ray would wait for more to join
            self.close()
            raise ConfigError(
                f"workers={count} take {gpus_each} GPUs each, and the cluster has {gpus}: ask for "
                "fewer workers."
            )
        kind: Any = ray.remote(
            num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1, max_task_retries=2
        )(_Worker)
        self._actors = [kind.remote(make_work, threads_each) for _ in range(count)]

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        from ray.util import ActorPool

        try:
            yield from ActorPool(self._actors).map_unordered(
                lambda actor, numbered: actor.do.remote(numbered), enumerate(tasks)
            )
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayActorError as error:
            raise RagMiddleError(f"A Ray worker ended ({error}). {_ENDED}") from error

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()


class _Worker:
    """Does tasks in a process of its own, with what `make_work` gives."""

    def __init__(self, make_work: MakeWork, threads_each: int) -> None:
        torch.set_num_threads(threads_each)
        self._work = cache(make_work)  # made by the first task

    def do(self, numbered: tuple[int, Any]) -> tuple[int, Any]:
        """The index of a task, and its result."""
        index, task = numbered
        return index, self._work()(task)


_worker: _Worker  # of this process


def _start(make_work: MakeWork, threads_each: int) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(make_work, threads_each)


def _do(numbered: tuple[int, Any]) -> tuple[int, Any]:
    return _worker.do(numbered)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch with `count` threads: sums depend on how they are split among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
