"""Who does the work of a long run: this process, several (joblib's loky), or a Ray cluster.

What a task gives depends on nothing but the task, so it does not matter who does it, nor when.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Generic, TypeVar

import torch

from rag_middle.errors import ConfigError, RagMiddleError
from rag_middle.extras import require

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Creates, where tasks are done, the function that does one, which other processes must be able to
#: import. It is called with the worker's device where workers have devices, else without arguments.
MakeWork = Callable[..., Callable[[Any], Any]]

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
    """Several processes of this machine, each with a model of its own.

    Args:
        make_work: called in each process.
        count: of processes.
        threads_each: of PyTorch in each process.
        devices: one for each process (`worker_devices`), which `make_work` is called with; none
            where it is called without.
    """

    def __init__(
        self, make_work: MakeWork, count: int, threads_each: int, devices: Sequence[str] = ()
    ) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self.count = count
        places: list[tuple[str, ...]] = [(name,) for name in devices] or [()] * count
        # A pool of one process each: a process that takes another's place has its device, and
        # where as many tasks come as there are processes, each does one.
        self._pools = [
            ProcessPoolExecutor(1, initializer=_start, initargs=(make_work, threads_each, *place))
            for place in places
        ]

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        waiting, free = iter(enumerate(tasks)), self._pools
        running: dict[Future[tuple[int, Result]], Any] = {}
        try:
            while True:
                for pool, task in zip(free, waiting, strict=False):
                    running[pool.submit(_do, task)] = pool
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                free = [running.pop(future) for future in done]
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            raise RagMiddleError(f"A worker process ended ({error}). {_ENDED}") from error

    def close(self) -> None:
        """End the processes, once they have done what they are at."""
        for pool in self._pools:
            pool.shutdown()


class RayWorkers(Workers[Task, Result]):
    """Actors of the Ray cluster in ``RAY_ADDRESS``, or of this machine where none is named.

    Ray starts one that dies again, on another node where its own has left, with its task.

    Args:
        make_work: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        gpus_each: GPUs of each actor. Ray shows an actor no others, so `make_work` is called
            with ``"cuda"``; without GPUs, it is called with no device.

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
            raise _too_few(count, gpus // gpus_each)
        kind: Any = ray.remote(
            num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1, max_task_retries=2
        )(_Worker)
        device = ("cuda",) if gpus_each else ()
        self._actors = [kind.remote(make_work, threads_each, *device) for _ in range(count)]

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

    def __init__(self, make_work: MakeWork, threads_each: int, *device: str) -> None:
        torch.set_num_threads(threads_each)
        self._work = cache(partial(make_work, *device))  # made by the first task

    def do(self, numbered: tuple[int, Any]) -> tuple[int, Any]:
        """The index of a task, and its result."""
        index, task = numbered
        return index, self._work()(task)


_worker: _Worker  # of this process


def _start(make_work: MakeWork, threads_each: int, *device: str) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(make_work, threads_each, *device)


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


def worker_devices(
    count: int,
    *,
    device: str | None = None,
    device_map: Any | None = None,
    cluster: bool = False,
) -> tuple[str, ...]:
    """A GPU for each worker, where models are loaded onto GPUs; ``cuda:0`` is taken last.

    Args:
        count: of workers.
        device: that the model is asked for on; None for a GPU if there is one.
        device_map: that the model is asked to be spread by.
        cluster: GPUs are those of a cluster, which has others and hands them out itself.

    Returns:
        One device per worker; empty where they compute on the CPU, or one loads as it was asked.

    Raises:
        ConfigError: more workers than GPUs, or several for one GPU or one spread model.
    """
    gpus = torch.cuda.device_count()
    chosen = torch.device(device or ("cuda" if gpus else "cpu"))
    is_spread = device_map is not None
    one_place = is_spread or chosen.index is not None
    if chosen.type != "cuda" or (count == 1 and (is_spread or not cluster)):
        return ()
    if one_place:
        raise ConfigError(
            f"workers={count} take a GPU of their own each: leave out device_map={device_map!r}, "
            f"and the number in device={device!r}."
        )
    if cluster:
        return ("cuda",) * count
    if count > gpus:
        raise _too_few(count, gpus)
    return tuple(f"cuda:{index}" for index in (*range(1, gpus), 0)[:count])


def _too_few(count: int, gpus: int) -> ConfigError:
    return ConfigError(
        f"workers={count} take a GPU each, and there are {gpus}: ask for at most {max(1, gpus)}."
    )
