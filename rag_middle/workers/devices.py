"""Which worker computes where."""

from __future__ import annotations

from typing import Any

import torch

from rag_middle.errors import WorkerConfigError
from rag_middle.wording import Argument, counted

__all__ = ["worker_devices"]


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
        WorkerConfigError: more workers than GPUs, several for one GPU that is named by its
            number, or for a model that is spread over all.
    """
    if device_map is not None or device == "auto":
        if count > 1:
            raise WorkerConfigError(
                Argument("workers", count),
                " load the model once each, and ",
                Argument("device", device)
                if device_map is None
                else Argument("device_map", device_map),
                " spreads one model over all devices: leave out one of them.",
            )
        return ()
    gpus = torch.cuda.device_count() if gpus is None else gpus
    where = torch.device(device or ("cuda" if gpus else "cpu"))
    if where.type != "cuda":
        return ()
    if ":" in str(where):  # cuda:1
        if count > 1 or cluster:
            raise WorkerConfigError(
                Argument("workers", count),
                " take a GPU each" if count > 1 else " takes the GPU that the cluster gives it",
                ", and ",
                Argument("device", device),
                " names one: leave out its number.",
            )
        if where.index >= gpus:
            raise WorkerConfigError(
                Argument("device", device),
                f" counts from 0, and there {_are(gpus)} here.",
            )
        return (str(where),)
    if cluster:
        return ("cuda",) * count
    if count > gpus:
        raise WorkerConfigError(
            Argument("workers", count),
            f" take a GPU each, and there {_are(gpus)} here: ask for at most {max(1, gpus)}.",
        )
    return tuple(f"cuda:{index}" for index in (*range(1, gpus), 0)[:count])


def _are(gpus: int) -> str:
    return f"{'is' if gpus == 1 else 'are'} {counted(gpus, 'GPU')}"
