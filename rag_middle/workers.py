"""Who does the work of a long run: this process, several (joblib), or a Ray cluster.

What a task gives depends on nothing but the task, so it does not matter who does it, nor when.
"""

from __future__ import annotations

import os
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from rag_middle.errors import ConfigError, MissingExtraError, RagMiddleError
from rag_middle.wording import counted

Task = TypeVar("Task")
Result = TypeVar("Result")

_IDLE_SECONDS = 300  # until a process without tasks ends

#: Creates, where tasks are done, the function that does one, which other processes must be able to
#: import. It is called with the worker's device where workers have devices, else without arguments.
MakeWork = Callable[..., Callable[[Any], Any]]


class Workers(ABC, Generic[Task, Result]):
    """Does tasks.

    Attributes:
        count: of tasks that are done at the same time.
    """

    count: int = 1

    @abstractmethod
    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """The index of each task with its result, in the order of completion."""

    def close(self) -> None:
        """Release processes and other resources."""
        return


class InProcess(Workers[Task, Result]):
    """One task after the other, in this process.

    Args:
        work: does a task.
    """

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        for index, task in enumerate(tasks):
            yield index, self._work(task)


class Processes(Workers[Task, Result]):
    """Several processes of this machine, each with a model of its own.

    Args:
        make_work: called in each process.
        count: of processes.
        threads_each: of PyTorch in each process.
        devices: one for each process (`worker_devices`), which `make_work` is called with.

    Raises:
        ConfigError: another number of devices than of processes.
    """

    def __init__(
        self, make_work: MakeWork, count: int, threads_each: int, devices: Sequence[str] = ()
    ) -> None:
        if devices and len(devices) != count:
            raise ConfigError(
                f"There are {count} worker processes and {len(devices)} devices: give one device "
                "for each, or none."
            )
        from joblib.externals.loky import ProcessPoolExecutor

        self.count = count
        self._taken = tempfile.TemporaryDirectory(prefix="rag-middle-")
        self._pool = ProcessPoolExecutor(
            count,
            timeout=_IDLE_SECONDS,
            initializer=_start_worker,
            initargs=(make_work, threads_each, tuple(devices), Path(self._taken.name)),
        )

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        try:
            # None waits in the pool, which would do it before it ends.
            waiting = iter(enumerate(tasks))
            running = {self._submit(task) for task in islice(waiting, self.count)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {self._submit(task) for task in islice(waiting, len(done))}
                for future in done:
                    yield future.result()
        except BrokenProcessPool as error:
            raise RagMiddleError(
                f"A worker process ended ({error}). Memory is the usual reason: use fewer workers. "
                "What was done is kept: the same command continues from there."
            ) from error

    def _submit(self, task: tuple[int, Task]) -> Future[tuple[int, Result]]:
        future: Future[tuple[int, Result]] = self._pool.submit(_do_in_worker, *task)
        return future

    def close(self) -> None:
        """End the processes, once they have done what they are at."""
        self._pool.shutdown()
        self._taken.cleanup()


class RayWorkers(Workers[Task, Result]):
    """Actors of a Ray cluster, or of this machine where no cluster is joined.

    Ray starts one that dies again, on another node where its own has left, with its task.

    Args:
        make_work: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        address: of a running cluster; None for that in ``RAY_ADDRESS``, else for this machine.
        gpus_each: GPUs of each actor. Ray shows an actor no others, so `make_work` is called
            with ``"cuda"``; without GPUs, it is called with no device.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: the cluster has fewer GPUs.
    """

    def __init__(
        self,
        make_work: MakeWork,
        count: int,
        threads_each: int,
        address: str | None = None,
        gpus_each: int = 0,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("backend='ray'", package="ray", extra="ray") from error
        self._ray: Any = ray
        self.count = count
        self._started_here = not ray.is_initialized()
        if self._started_here:
            joins = address or os.environ.get("RAY_ADDRESS")  # whose CPUs are its own affair
            here = {} if joins else {"num_cpus": count * threads_each}
            ray.init(address=address, include_dashboard=False, log_to_driver=False, **here)
        self._actors: list[Any] = []
        gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_each else 0
        if count * gpus_each > gpus:  # Ray would wait for more to join
            self.close()
            raise ConfigError(
                f"workers={count} take {counted(gpus_each, 'GPU')} each, and the Ray "
                f"cluster has {gpus}: ask for at most {max(1, gpus // gpus_each)}.",
            )
        kind: Any = ray.remote(
            num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1, max_task_retries=2
        )(_Worker)
        device = ("cuda",) if gpus_each else ()
        self._actors = [kind.remote(make_work, threads_each, *device) for _ in range(count)]

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        from ray.util import ActorPool

        pool = ActorPool(self._actors)
        try:
            yield from pool.map_unordered(
                lambda actor, task: actor.do.remote(*task), enumerate(tasks)
            )
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RagMiddleError):
                raise error.cause from None  # without Ray's account of where it happened
            raise
        except self._ray.exceptions.RayActorError as error:
            raise RagMiddleError(
                f"A Ray worker ended again and again ({error}). Memory is the usual reason: use "
                "fewer workers. What was done is kept: the same command continues from there."
            ) from error

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
        self._make_work, self._device = make_work, device
        self._work: Callable[[Any], Any] | None = None

    def do(self, index: int, task: Any) -> tuple[int, Any]:
        """The index of a task, and its result."""
        if self._work is None:
            self._work = self._make_work(*self._device)
        return index, self._work(task)


_worker: _Worker | None = None  # of this process
_held: list[Any] = []  # locks of the devices taken, until this process ends


def _start_worker(
    make_work: MakeWork, threads_each: int, devices: Sequence[str], taken: Path
) -> None:
    global _worker
    # A terminal sends Ctrl-C to every process of the command; the first one says what happened.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(make_work, threads_each, *_free_device(devices, taken))


def _do_in_worker(index: int, task: Any) -> tuple[int, Any]:
    assert _worker is not None, "_start_worker is called first"
    return _worker.do(index, task)


def _free_device(devices: Sequence[str], taken: Path) -> list[str]:
    """A device that no other process has taken; none where there are none."""
    from filelock import FileLock, Timeout

    for device in devices:
        lock = FileLock(taken / device.replace(":", "-"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        _held.append(lock)
        return [device]
    return []


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
    gpus: int | None = None,
    cluster: bool = False,
) -> tuple[str, ...]:
    """A GPU for each worker, where models are loaded onto GPUs.

    The process that starts them has a model of its own on ``cuda:0``: that GPU is taken last.

    Args:
        count: of workers.
        device: that the model is asked for on; None for a GPU if there is one.
        device_map: that the model is asked to be spread by.
        gpus: how many there are here; asked of PyTorch by default.
        cluster: GPUs are those of a cluster, which has others and hands them out itself.

    Returns:
        One device per worker; empty where they compute on the CPU, or wherever `device_map` says.

    Raises:
        ConfigError: more workers than GPUs, several for one GPU that is named by its
            number, or for a model that is spread over all.
    """
    if device_map is not None or device == "auto":
        if count > 1:
            spread = f"device={device!r}" if device_map is None else f"device_map={device_map!r}"
            raise ConfigError(
                f"workers={count} load the model once each, and {spread} spreads one model over "
                "all devices: leave out one of them."
            )
        return ()
    gpus = torch.cuda.device_count() if gpus is None else gpus
    where = torch.device(device or ("cuda" if gpus else "cpu"))
    if where.type != "cuda":
        return ()
    if ":" in str(where):  # cuda:1
        if count > 1 or cluster:
            raise ConfigError(
                f"A worker takes a GPU of its own, and device={device!r} names one: leave out its "
                "number. A cluster gives a worker its GPU."
            )
        if where.index >= gpus:
            raise ConfigError(
                f"device={device!r} counts from 0, and there {_are(gpus)} here.",
            )
        return (str(where),)
    if cluster:
        return ("cuda",) * count
    if count > gpus:
        raise ConfigError(
            f"workers={count} take a GPU each, and there {_are(gpus)} here: ask for at "
            f"most {max(1, gpus)}.",
        )
    return tuple(f"cuda:{index}" for index in (*range(1, gpus), 0)[:count])


def _are(gpus: int) -> str:
    return f"{'is' if gpus == 1 else 'are'} {counted(gpus, 'GPU')}"
