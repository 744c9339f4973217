"""Routers of MoICE (arXiv:2406.19598): weights that are trained, saved and loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised

from rag_middle.errors import MethodConfigError
from rag_middle.files import expanded, write_files
from rag_middle.methods.moice.kernels import ExpertGate

FORMAT_VERSION = 2
_FILE = "routers.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExpertRouters:
    """One router per layer, and the bases they choose from.

    Attributes:
        base_factors: ``E`` numbers, what the model's own RoPE base is multiplied by.
        gates: by 0-based layer.
        provenance: how they came about; saved and loaded as it is.

    Raises:
        MethodConfigError: no layer, or weights that do not fit each other.
    """

    base_factors: tuple[float, ...]
    gates: Mapping[int, ExpertGate]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        experts = len(self.base_factors)
        if not self.gates:
            raise MethodConfigError("ExpertRouters: there is no router. Give one per layer.")
        for layer, (gate, down, up) in self.gates.items():
            fits = gate.shape == up.shape and gate.ndim == 2 and gate.shape[0] == experts
            if not fits or down.shape != (experts, experts):
                raise MethodConfigError(
                    f"ExpertRouters: the router of layer {layer} has weights {tuple(gate.shape)}, "
                    f"{tuple(down.shape)} and {tuple(up.shape)}; {experts} experts need "
                    f"[{experts}, d], [{experts}, {experts}] and [{experts}, d]."
                )

    def save(self, directory: str | Path) -> None:
        """Write ``routers.safetensors``; the directory is made.

        Raises:
            OutputWriteError: it cannot be written to; earlier routers are as they were.
        """
        tensors = {
            f"layers.{layer}.{name}": weight.detach().to("cpu", torch.float32).contiguous()
            for layer, gate in self.gates.items()
            for name, weight in gate._asdict().items()
        }
        content = {
            "format_version": FORMAT_VERSION,
            "base_factors": list(self.base_factors),
            "provenance": dict(self.provenance),
        }
        metadata = {"rag_middle": json.dumps(content)}
        write_files(directory, {_FILE: serialised(tensors, metadata)})

    @classmethod
    def load(cls, directory: str | Path) -> ExpertRouters:
        """Read what `save` wrote.

        Raises:
            MethodConfigError: the file is missing, damaged, or of another format version.
        """
        path = expanded(directory) / _FILE
        try:
            named: dict[int, dict[str, torch.Tensor]] = {}
            with safe_open(path, "pt") as file:
                content = json.loads((file.metadata() or {})["rag_middle"])
                if content["format_version"] != FORMAT_VERSION:
                    raise ValueError(f"format_version is {content['format_version']!r}")
                for name in sorted(file.keys()):
                    _, layer, which = name.split(".")
                    named.setdefault(int(layer), {})[which] = file.get_tensor(name)
            gates = {layer: ExpertGate(**weights) for layer, weights in sorted(named.items())}
            factors = tuple(float(factor) for factor in content["base_factors"])
            provenance = dict(content["provenance"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise MethodConfigError(
                f"MoICE: no routers can be read from {path} ({type(error).__name__}: {error}): "
                "ExpertRouters.save writes such a file, and examples/train_moice.py makes them."
            ) from error
        return cls(base_factors=factors, gates=gates, provenance=provenance)

    def __repr__(self) -> str:
        # With what tells two of one provenance apart: records know methods by their repr.
        digest = hashlib.sha256(repr(self.base_factors).encode())
        for layer, gate in sorted(self.gates.items()):
            digest.update(str(layer).encode())
            for weights in gate:
                digest.update(repr(weights.tolist()).encode())
        return (
            f"ExpertRouters({len(self.base_factors)} experts, {len(self.gates)} layers, "
            f"sha256 {digest.hexdigest()[:16]}, {dict(self.provenance)})"
        )
