"""Golden cases of MoICE, whose routers are recorded with them."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rag_middle.methods import Method, MoICE
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.methods.moice.routers import ExpertRouters
from rag_middle.verify.cases import GoldenCase

__all__ = ["moice_method"]

_WEIGHT = re.compile(r"gate_([123])_layer(\d+)")


def moice_method(case: GoldenCase) -> Method:
    """The method with the case's routers, its bases taken relative to the model's own.

    Raises:
        GoldenFormatError: routers, bases or the model's base are missing or do not fit.
        KeyError: parameters are missing.
    """
    params: dict[str, Any] = dict(case.params)
    bases, experts, top_k = (params.pop(name) for name in ("base_set", "expert_nums", "topk"))
    if params or experts != len(bases):
        raise case.malformed(f"its params do not fit moice: {dict(case.params)}")
    own = _own_base(case)
    gates = {}
    for layer in sorted({layer for _, layer in _names(case)}):
        names = [f"gate_{which}_layer{layer}" for which in (1, 2, 3)]
        gate, down, up = (torch.from_numpy(case.arrays(name)[name]) for name in names)
        gates[layer] = ExpertGate(gate=gate, down=down, up=up)
    routers = ExpertRouters(base_factors=tuple(base / own for base in bases), gates=gates)
    return MoICE(routers=routers, top_k=top_k)


def _names(case: GoldenCase) -> list[tuple[int, int]]:
    """Weight number and layer of every recorded router weight."""
    path = Path(case.directory) / str(case.fields.get("arrays"))
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            matches = [_WEIGHT.fullmatch(name) for name in archive.files]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise case.malformed(f"{path} cannot be read: {error}") from error
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _own_base(case: GoldenCase) -> float:
    path = case.recorded().model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {}
    return float(config.get("rope_theta") or rope["rope_theta"])
