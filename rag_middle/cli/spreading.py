"""Options of commands whose work can be spread over processes or a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rag_middle.cli.console import show_printably
from rag_middle.errors import MissingExtraError

if TYPE_CHECKING:
    from rag_middle.workers import MakeWork, Workers


class Backend(StrEnum):
    """processes: of this machine; ray: a Ray cluster."""

    processes = "processes"
    ray = "ray"


def check_backend(backend: str) -> None:
    """Refuse Ray where it is not installed, before anything is loaded.

    Raises:
        MissingExtraError: it is not.
    """
    if backend == Backend.ray and find_spec("ray") is None:
        raise MissingExtraError("--backend ray", package="ray", extra="ray")


def devices_of(placement: Mapping[str, Any], count: int, backend: str) -> tuple[str, ...]:
    """The devices of workers, by the arguments that their model is loaded with."""
    from rag_middle.workers import worker_devices

    return worker_devices(
        count,
        device=placement.get("device"),
        device_map=placement.get("device_map"),
        cluster=backend == Backend.ray,
    )


def start_workers(
    make_work: MakeWork, *, backend: str, count: int, threads: int, devices: Sequence[str]
) -> Workers[Any, Any]:
    """Workers of this machine, or of the Ray cluster."""
    from rag_middle.workers import Processes, RayWorkers

    if backend == Backend.ray:
        return RayWorkers(make_work, count, threads, gpus_each=1 if devices else 0)
    # They write to the terminal of the command. Ray shows nothing of what its workers write.
    return Processes(partial(_printable_work, make_work), count, threads, devices)


def _printable_work(make_work: MakeWork, *device: str) -> Any:
    show_printably()
    return make_work(*device)
