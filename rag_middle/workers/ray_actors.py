"""Workers on a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from time import monotonic, sleep
from typing import Any

from rag_middle.errors import MissingExtraError, RagMiddleError, WorkerConfigError, WorkerError
from rag_middle.notices import WorkersWarning, warn_caller
from rag_middle.wording import Argument, counted, listed, shortened
from rag_middle.workers.base import MakeWork, Result, Task, Workers
from rag_middle.workers.processes import Worker

__all__ = ["RayWorkers"]

_MAX_DEATHS = 3  # of each worker, in a row, without a result
_LONGEST_PAUSE = 10  # seconds
_SILENCE = 60  # seconds without any worker
_SAME_VERSIONS = ("rag-middle", "torch", "transformers")


class RayWorkers(Workers[Task, Result]):
    """Actors of a Ray cluster, or of this machine where no cluster is joined.

    An actor gets tasks once it has said that it is there. Ray restarts one that dies, on another
    node where its own has left, and its task is done by whichever is there first: so nodes may
    leave and join as long as one has room for a worker.

    Args:
        make_work: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        address: of a running cluster; None for that in ``RAY_ADDRESS``, else for this machine.
        gpus_each: GPUs of each actor. Ray shows an actor no others, so `make_work` is called
            with ``"cuda"``; without GPUs, it is called with no device.

    Raises:
        MissingExtraError: Ray is not installed.
        WorkerConfigError: the cluster has fewer GPUs. With the results: a node has other versions
            of what answers depend on, or other weights.
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
            # By its name: untyped in parts, and not installed everywhere.
            ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtraError("backend='ray'", package="ray", extra="ray") from error
        self._ray = ray
        self.count = count
        self._threads_each = threads_each
        self._started_here = not ray.is_initialized()
        if self._started_here:
            joins = address or os.environ.get("RAY_ADDRESS")  # whose CPUs are its own affair
            here = {} if joins else {"num_cpus": count * threads_each}
            ray.init(address=address, include_dashboard=False, log_to_driver=False, **here)
        self._actors: list[Any] = []
        gpus = int(ray.cluster_resources().get("GPU", 0)) if gpus_each else 0
        if count * gpus_each > gpus:  # Ray would wait for more to join
            self.close()
            raise WorkerConfigError(
                Argument("workers", count),
                f" take {counted(gpus_each, 'GPU')} each, and the Ray cluster has {gpus}: ask for "
                f"at most {max(1, gpus // gpus_each)}.",
            )
        remote = ray.remote(num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1)(_Actor)
        device = "cuda" if gpus_each else None
        self._actors = [remote.remote(make_work, threads_each, device) for _ in range(count)]

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        waiting = list(enumerate(tasks))[::-1]
        running: dict[Any, tuple[Any, int]] = {}
        idle: list[Any] = []
        asked = {self._ask(actor): actor for actor in self._actors}  # whether they are there
        absent: list[Any] = []  # until `ask_again`
        ask_again = 0.0
        deaths = refusals = 0  # with a task, or asked, in a row
        while waiting or running:
            while waiting and idle:
                actor, (index, task) = idle.pop(), waiting.pop()
                running[actor.do.remote(task)] = (actor, index)
            pause = max(0.0, ask_again - monotonic()) if absent else _SILENCE
            if absent and not pause:
                asked |= {self._ask(actor): actor for actor in absent}
                absent.clear()
            elif absent and not running and not asked:
                sleep(pause)
                continue
            # A call to an actor that lost its place fails after seconds; the first one waits.
            finished, _ = self._ray.wait(
                [*running, *asked], num_returns=1, timeout=pause or _SILENCE
            )
            if not finished and not running and not absent:
                self._say_that_none_starts()
            for reference in finished:
                actor, task_index = (
                    running.pop(reference) if reference in running else (asked.pop(reference), None)
                )
                try:
                    result = self._got(reference)
                except self._ray.exceptions.RayActorError as error:
                    if task_index is None:
                        refusals += 1
                    else:
                        deaths += 1
                        waiting.append((task_index, tasks[task_index]))
                    none_there = refusals >= _MAX_DEATHS * self.count and not running and not idle
                    if none_there or deaths >= _MAX_DEATHS * self.count:
                        raise WorkerError(
                            "Ray workers ended again and again, or could not be started "
                            f"({shortened(str(error), 300)}). Memory is the usual reason: use "
                            "fewer workers. What was done is kept: the same command continues "
                            "from there."
                        ) from error
                    absent.append(actor)
                    ask_again = monotonic() + min(2 ** max(deaths, refusals), _LONGEST_PAUSE)
                    continue
                refusals = 0
                idle.append(actor)
                if task_index is not None:
                    deaths = 0
                    yield task_index, result

    def _ask(self, actor: Any) -> Any:
        return actor.check.remote({package: version(package) for package in _SAME_VERSIONS})

    def _got(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RagMiddleError):
                raise error.cause from None  # without Ray's account of where it happened
            raise

    def _say_that_none_starts(self) -> None:
        has, free = self._ray.cluster_resources(), self._ray.available_resources()
        warn_caller(
            WorkersWarning(
                Argument("workers", self.count),
                f" on the Ray cluster: none has started yet. Each takes "
                f"{counted(self._threads_each, 'CPU')}; the cluster has {has.get('CPU', 0):g}, of "
                f"which {free.get('CPU', 0):g} are free. They start when there is room.",
            )
        )

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()


class _Actor(Worker):
    """A worker that says whether answers here are those of the process that asks."""

    def check(self, versions: Mapping[str, str]) -> None:
        """Be there.

        Args:
            versions: of what answers depend on, by package.

        Raises:
            WorkerConfigError: some are others here.
        """
        others = [
            f"{package} {version(package)} (not {wanted})"
            for package, wanted in versions.items()
            if version(package) != wanted
        ]
        if others:
            raise WorkerConfigError(
                f"The node {platform.node()!r} of the Ray cluster has {listed(others)}: install "
                "the versions of the process that starts the run there, or take the node out."
            )
