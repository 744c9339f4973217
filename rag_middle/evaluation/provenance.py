"""Which model and which software a result comes from."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import rag_middle
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.identity import told_name

__all__ = ["model_identity", "software"]

_SAMPLED = 16  # values of a parameter that go into the digest


def model_identity(model: RagMiddleModel) -> dict[str, Any]:
    """What tells this model from others: name, revision, number format, a digest of its weights.

    A model from a folder goes by the folder's name, without the way there. The digest takes a few
    values of every parameter, so that another training of a model under the same name is noticed;
    it is no checksum of the whole.
    """
    inner: Any = model.model
    digest = hashlib.sha256()
    for name, parameter in inner.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        if parameter.device.type != "meta":
            values = parameter.detach().flatten()
            every = max(1, len(values) // _SAMPLED)
            sample = values[::every][:_SAMPLED].to("cpu", torch.float32)
            digest.update(sample.numpy().tobytes())
    return {
        "name": told_name(str(inner.config._name_or_path or type(inner).__name__)),
        "revision": getattr(inner.config, "_commit_hash", None),
        "type": inner.config.model_type,
        "dtype": str(inner.dtype).removeprefix("torch."),
        "weights": digest.hexdigest()[:16],
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
