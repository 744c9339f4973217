"""Which model and which software a result comes from."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import rag_middle
from rag_middle.fingerprint import fingerprint, weights_sample
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.identity import display_name

__all__ = ["model_identity", "software"]


def model_identity(model: RagMiddleModel) -> dict[str, Any]:
    """What tells this model from others: name, revision, number format, a digest of its weights.

    A model from a folder goes by the folder's name, without the way there. The digest takes a few
    values of every parameter, so that another training of a model under the same name is noticed;
    it is no checksum of the whole.
    """
    inner: Any = model.model
    weights = weights_sample(inner) or fingerprint(inner)
    return {
        "name": display_name(str(inner.config._name_or_path or type(inner).__name__)),
        "revision": getattr(inner.config, "_commit_hash", None),
        "type": inner.config.model_type,
        "dtype": str(inner.dtype).removeprefix("torch."),
        "weights": weights[:16],
    }


def software(model: RagMiddleModel) -> dict[str, str]:
    """Versions, and the device."""
    found = {"rag-middle": rag_middle.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {**found, "device": f"{device.type} ({name})"}
