"""Workers on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from time import sleep
from typing import Any

from rag_middle.errors import MissingExtraError, RagMiddleError, WorkerConfigError, WorkerError
from rag_middle.wording import Argument, counted
from rag_middle.workers.base import MakeWork, Result, Task, Workers
from rag_middle.workers.processes import Worker

__all__ = ["RayWorkers"]

_MAX_DEATHS = 3  # of each worker, in a row, without a result
_LONGEST_PAUSE = 10  # seconds


class RayWorkers(Workers[Task, Result]):
    """Actors of a Ray cluster, or of this machine where no cluster is joined.

    Ray restarts an actor that dies, on another node where its own has left; its task is done by
    whichever is there first.

    Args:
        make_work: called in each actor.
        count: of actors.
        threads_each: of PyTorch, and CPUs, of each actor.
        address: of a running cluster; None for that in ``RAY_ADDRESS``, else for this machine.
        gpus_each: GPUs of each actor. Ray shows an actor no others, so `make_work` is called
            with ``"cuda"``; without GPUs, it is called with no device.

    Raises:
        MissingExtraError: Ray is not installed.
        WorkerConfigError: the cluster has fewer GPUs.
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
        remote = ray.remote(num_cpus=threads_each, num_gpus=gpus_each, max_restarts=-1)(Worker)
        device = "cuda" if gpus_each else None
        self._actors = [remote.remote(make_work, threads_each, device) for _ in range(count)]

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        waiting = list(enumerate(tasks))[::-1]
        idle = list(self._actors)
        running: dict[Any, tuple[Any, int]] = {}
        deaths = 0  # in a row, without a result
        while waiting or running:
            while waiting and idle:
                actor, (index, task) = idle.pop(), waiting.pop()
                running[actor.do.remote(task)] = (actor, index)
            [finished], _ = self._ray.wait(list(running), num_returns=1)
            actor, index = running.pop(finished)
            try:
                result: Result = self._ray.get(finished)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RagMiddleError):
                    raise error.cause from None  # without Ray's account of where it happened
                raise
            except self._ray.exceptions.RayActorError as error:
                deaths += 1
                if deaths >= _MAX_DEATHS * self.count:
                    raise WorkerError(
                        f"Ray workers ended again and again ({type(error).__name__}). Memory is "
                        "the usual reason: use fewer workers. What was done is kept: the same "
                        "command continues from there."
                    ) from error
                sleep(min(2**deaths, _LONGEST_PAUSE))  # while Ray finds out that a node has left
                waiting.append((index, tasks[index]))
                idle.insert(0, actor)  # others first
                continue
            deaths = 0
            idle.append(actor)
            yield index, result

    def close(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()
