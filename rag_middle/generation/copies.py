"""The model of a run, loaded once more where its workers are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_middle.errors import WorkerConfigError
from rag_middle.fingerprint import weights_sample
from rag_middle.generation.model import RagMiddleModel

__all__ = ["load_copy", "origin"]


def origin(model: RagMiddleModel) -> dict[str, Any]:
    """Where workers find the model, in any working directory, and what tells it from others.

    Returns:
        The fields ``model`` and ``weights`` of `Answering` and `FromDisk`.
    """
    name = str(model.model.config._name_or_path)
    folder = Path(name)
    return {
        "model": str(folder.resolve()) if folder.is_dir() else name,
        "weights": weights_sample(model.model),
    }


def load_copy(
    name: str, options: Mapping[str, Any], *, device: str | None, weights: str | None
) -> RagMiddleModel:
    """The model of a run.

    Args:
        name: directory or hub name.
        options: of `RagMiddleModel.from_pretrained`.
        device: of the worker, stands in for that of `options`; None leaves it.
        weights: what `weights_sample` says of the model of the run; None checks nothing.

    Raises:
        WorkerConfigError: the weights here are others.
        RagMiddleError: it cannot be loaded.
    """
    placed = dict(options) if device is None else {**options, "device": device}
    loaded = RagMiddleModel.from_pretrained(name, **placed)
    if weights is not None and weights_sample(loaded.model) != weights:
        raise WorkerConfigError(
            f"A worker found other weights under {name!r} than those of this run: the folder "
            "differs from machine to machine, or has changed since the run began. Copy the model "
            "to every machine, under the same path, and run it again."
        )
    return loaded
