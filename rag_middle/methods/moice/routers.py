"""Routers of MoICE (arXiv:2406.19598): weights that are trained, saved and loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as serialised

from rag_middle.attention.traits import ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.files import expanded, write_files
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.plain_data import parse_json

FORMAT_VERSION = 1
_WEIGHTS, _CONFIG = "routers.safetensors", "routers.json"


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

    @classmethod
    def new(
        cls, traits: ModelTraits, base_factors: tuple[float, ...], *, seed: int = 0
    ) -> ExpertRouters:
        """Untrained routers for every layer with rotary positions, nearly indifferent at first."""
        generator = torch.Generator().manual_seed(seed)
        experts = len(base_factors)
        gates = {
            index: ExpertGate(
                gate=torch.randn(
                    experts, layer.head_size, generator=generator, dtype=torch.float32, device="cpu"
                )
                * 0.02,
                down=torch.randn(
                    experts, experts, generator=generator, dtype=torch.float32, device="cpu"
                )
                * 0.02,
                up=torch.randn(
                    experts, layer.head_size, generator=generator, dtype=torch.float32, device="cpu"
                )
                * 0.02,
            )
            for index, layer in traits.layers.items()
            if layer.uses_rope
        }
        return cls(base_factors=base_factors, gates=gates, provenance={"trained_steps": 0})

    def save(self, directory: str | Path) -> None:
        """Write ``routers.safetensors`` and ``routers.json``; the directory is made.

        Raises:
            OutputWriteError: it cannot be written to; earlier routers are as they were.
        """
        tensors = {
            f"layers.{layer}.{name}": weight.detach().to("cpu", torch.float32).contiguous()
            for layer, gate in self.gates.items()
            for name, weight in gate._asdict().items()
        }
        weights = serialised(tensors)
        content = {
            "format_version": FORMAT_VERSION,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "base_factors": list(self.base_factors),
            "provenance": dict(self.provenance),
        }
        text = json.dumps(content, indent=2) + "\n"
        write_files(directory, {_WEIGHTS: weights, _CONFIG: text.encode()})

    @classmethod
    def load(cls, directory: str | Path) -> ExpertRouters:
        """Read what `save` wrote.

        Raises:
            MethodConfigError: the files are missing, damaged, or of another format version.
        """
        path = expanded(directory)
        try:
            content = parse_json((path / _CONFIG).read_text(encoding="utf-8"))
            if content["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format_version is {content['format_version']!r}")
            written = (path / _WEIGHTS).read_bytes()
            digest = hashlib.sha256(written).hexdigest()
            if content.get("weights_sha256", digest) != digest:  # earlier versions wrote none
                raise ValueError("the two are not of one saving, as a killed process leaves them")
            named: dict[int, dict[str, torch.Tensor]] = {}
            for name, weight in load(written).items():
                _, layer, which = name.split(".")
                named.setdefault(int(layer), {})[which] = weight
            gates = {layer: ExpertGate(**weights) for layer, weights in sorted(named.items())}
            factors = tuple(float(factor) for factor in content["base_factors"])
            provenance = dict(content["provenance"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise MethodConfigError(
                f"MoICE: no routers can be read from {path} ({type(error).__name__}: {error}). "
                f"It should hold {_WEIGHTS} and {_CONFIG}, as ExpertRouters.save writes them and "
                "examples/train_moice.py makes them."
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
