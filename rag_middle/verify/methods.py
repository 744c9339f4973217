"""Which method object gives what a golden case recorded.

The cases use the parameter names of the code that produced them. Where they differ from those here,
a function takes exactly them, so that a parameter nobody handles is an error and not ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch

from rag_middle.errors import MethodConfigError
from rag_middle.methods import (
    APE,
    LPES,
    PINE,
    SIW,
    AttentionSorting,
    Compose,
    DySCO,
    Method,
    MoICE,
    MsPoE,
    NoMethod,
    ParallelContextWindows,
    PositionalHiddenStates,
    PositionInterpolation,
    RoToR,
    SelfExtend,
)
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.methods.moice.routers import ExpertRouters
from rag_middle.verify.cases import GoldenCase


def method_for(case: GoldenCase) -> Method:
    """The method object that should give what the case recorded.

    Raises:
        FileFormatError: parameters that are missing, not known or refused.
    """
    try:
        build = partial(_moice, case) if case.method == "moice" else None
        return _built(case.method, case.params, build)
    except (MethodConfigError, TypeError, KeyError) as error:
        raise case.malformed(f"its params do not fit {case.method}: {error}") from error


def _built(
    name: str, params: Mapping[str, Any], build: Callable[..., Method] | None = None
) -> Method:
    build = build or _TRANSLATED.get(name, GOLDEN_METHODS[name])
    signature(build).bind(**params)  # before the call, whose own TypeErrors mean something else
    return build(**params)


def _ms_poe(
    *,
    apply_layers: Sequence[int],
    compress_ratio_min: float,
    compress_ratio_max: float,
    head_type: str | None,
) -> Method:
    orders: dict[str | None, Any] = {None: "awareness", "normal": "sequential"}
    return MsPoE(
        min_ratio=compress_ratio_min,
        max_ratio=compress_ratio_max,
        layers=tuple(apply_layers),
        head_order=orders[head_type],
        reference_code=True,
    )


def _positional_hidden(
    *,
    dims: Sequence[int],
    layers: Sequence[int],
    factor: float,
    last_recompute_tokens: int,
    change_value: bool,
    skip_first: int,
) -> Method:
    return PositionalHiddenStates(
        channels=tuple(dims),
        factor=factor,
        layers=tuple(layers),
        last_tokens=last_recompute_tokens,
        scale_values=change_value,
        skip_first=skip_first,
        reference_code=True,
    )


def _self_extend(*, group_size: int, window_size: int, scale_base: float) -> Method:
    return SelfExtend(
        group=group_size,
        window=window_size,
        log_scale_base=scale_base if scale_base > 0 else None,
        reference_code=True,
    )


def _rotor(*, ordering: str, global_ordering: Sequence[int]) -> Method:
    names: dict[str, Any] = {"lexical": "lexical", "freq": "frequency", "given": "given"}
    return RoToR(order=names[ordering])


def _attention_sorting(*, iterations: int, best_doc_last: bool) -> Method:
    return AttentionSorting(iterations=iterations, best_last=best_doc_last)


def _moice(case: GoldenCase, *, base_set: Sequence[float], expert_nums: int, topk: int) -> Method:
    """The method with the routers of the case's arrays, its bases relative to the model's own.

    `expert_nums` is the length of `base_set`.
    """
    config = json.loads((case.recorded().model / "config.json").read_text(encoding="utf-8"))
    own_base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    arrays = case.arrays()
    prefix = "gate_1_layer"
    gates = {}
    for layer in sorted(int(n.removeprefix(prefix)) for n in arrays if n.startswith(prefix)):
        gate, down, up = (
            torch.from_numpy(arrays[f"gate_{number}_layer{layer}"]) for number in (1, 2, 3)
        )
        gates[layer] = ExpertGate(gate=gate, down=down, up=up)
    routers = ExpertRouters(base_factors=tuple(base / own_base for base in base_set), gates=gates)
    return MoICE(routers=routers, top_k=topk)


def _dysco(
    *,
    selected_heads: Sequence[Sequence[int]],
    top_k: int,
    top_p: float | None,
    strength: float,
    decay_factor: float,
    context_warmup_steps: int,
    intervention_warmup_steps: int,
    template_sequences: Sequence[Sequence[int]],
) -> Method:
    return DySCO(
        heads=tuple((layer, head) for layer, head in selected_heads),
        strength=strength,
        decay=decay_factor,
        changed_prompt_tokens=intervention_warmup_steps + 1,
        observed_tokens=context_warmup_steps - 1,
        template_sequences=tuple(map(tuple, template_sequences)),
        top_k=top_k,
        top_p=1.0 if top_p is None else top_p,
    )


def _compose(*, methods: Sequence[Mapping[str, Any]]) -> Method:
    return Compose(methods=tuple(_built(part["method"], part["params"]) for part in methods))


#: By the name in ``cases.json``. A new method with golden values gets a line here.
GOLDEN_METHODS: dict[str, type[Method]] = {
    "none": NoMethod,
    "pine": PINE,
    "ms_poe": MsPoE,
    "positional_hidden": PositionalHiddenStates,
    "lpes": LPES,
    "siw": SIW,
    "position_interpolation": PositionInterpolation,
    "moice": MoICE,
    "rotor": RoToR,
    "attention_sorting": AttentionSorting,
    "self_extend": SelfExtend,
    "pcw": ParallelContextWindows,
    "ape": APE,
    "dysco": DySCO,
    "compose": Compose,
}

#: What makes the method of the case's parameters, where they have other names here.
_TRANSLATED: dict[str, Callable[..., Method]] = {
    "ms_poe": _ms_poe,
    "positional_hidden": _positional_hidden,
    "rotor": _rotor,
    "attention_sorting": _attention_sorting,
    "self_extend": _self_extend,
    "dysco": _dysco,
    "compose": _compose,
}
