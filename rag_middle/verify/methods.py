"""Which method object gives what a golden case recorded.

The cases use the parameter names of the code that produced them. Where they differ from those here,
a function takes exactly them, so that a parameter nobody handles is an error and not ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class GoldenMethod:
    """A method name of golden cases.

    Attributes:
        kind: the method here.
        translate: makes the method object, from the case's parameters by keyword; None where they
            have the same names here.
    """

    kind: type[Method]
    translate: Callable[..., Method] | None = None

    @property
    def name(self) -> str:
        """The registered name it has here."""
        return self.kind.name


def method_for(case: GoldenCase) -> Method:
    """The method object that should give what the case recorded.

    Raises:
        FileFormatError: parameters that are missing, not known or refused.
    """
    try:
        if case.method == "moice":
            return _moice(case)
        return _built(case.method, case.params)
    except (MethodConfigError, TypeError, KeyError) as error:
        raise case.malformed(f"its params do not fit {case.method}: {error}") from error


def _built(name: str, params: Mapping[str, Any]) -> Method:
    method = GOLDEN_METHODS[name]
    build = method.translate or method.kind
    signature(build).bind(**params)  # before the call, whose own TypeErrors mean something else
    return build(**params)


def _ms_poe(
    *,
    apply_layers: Sequence[int],
    compress_ratio_min: float,
    compress_ratio_max: float,
    head_type: str | None,
) -> Method:
    if head_type not in (None, "normal"):
        raise MethodConfigError(f"head_type {head_type!r} is not supported")
    return MsPoE(
        min_ratio=compress_ratio_min,
        max_ratio=compress_ratio_max,
        layers=tuple(apply_layers),
        head_order="awareness" if head_type is None else "sequential",
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
    names = {"lexical": "lexical", "freq": "frequency", "given": "given"}
    if ordering not in names:
        raise MethodConfigError(f"ordering {ordering!r} is not supported")
    return RoToR(order=names[ordering])  # type: ignore[arg-type]


def _attention_sorting(*, iterations: int, best_doc_last: bool) -> Method:
    return AttentionSorting(iterations=iterations, best_last=best_doc_last)


def _moice(case: GoldenCase) -> Method:
    """The method with the routers of the case's arrays, its bases relative to the model's own."""
    params: dict[str, Any] = dict(case.params)
    bases, experts, top_k = (params.pop(name) for name in ("base_set", "expert_nums", "topk"))
    if params or experts != len(bases):
        raise case.malformed(f"its params do not fit moice: {dict(case.params)}")
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
    routers = ExpertRouters(base_factors=tuple(base / own_base for base in bases), gates=gates)
    return MoICE(routers=routers, top_k=top_k)


def _dysco(
    *,
    selected_heads: Sequence[Sequence[int]],
    top_k: int | None,
    top_p: float | None,
    strength: float,
    decay_factor: float,
    context_warmup_steps: int,
    intervention_warmup_steps: int,
    template_sequences: Sequence[Sequence[int]],
) -> Method:
    limits: dict[str, Any] = {"top_p": 1.0 if top_p is None else top_p}
    if top_k is not None:
        limits["top_k"] = top_k
    return DySCO(
        heads=tuple((layer, head) for layer, head in selected_heads),
        strength=strength,
        decay=decay_factor,
        changed_prompt_tokens=intervention_warmup_steps + 1,
        observed_tokens=context_warmup_steps - 1,
        template_sequences=tuple(map(tuple, template_sequences)),
        **limits,
    )


def _compose(*, methods: Sequence[Mapping[str, Any]]) -> Method:
    return Compose(methods=tuple(_built(part["method"], part["params"]) for part in methods))


#: By the name in ``cases.json``. A new method with golden values gets a line here.
GOLDEN_METHODS: dict[str, GoldenMethod] = {
    "none": GoldenMethod(NoMethod),
    "pine": GoldenMethod(PINE),
    "ms_poe": GoldenMethod(MsPoE, _ms_poe),
    "positional_hidden": GoldenMethod(PositionalHiddenStates, _positional_hidden),
    "lpes": GoldenMethod(LPES),
    "siw": GoldenMethod(SIW),
    "position_interpolation": GoldenMethod(PositionInterpolation),
    "moice": GoldenMethod(MoICE),  # its routers are in the case's arrays: `_moice`
    "rotor": GoldenMethod(RoToR, _rotor),
    "attention_sorting": GoldenMethod(AttentionSorting, _attention_sorting),
    "self_extend": GoldenMethod(SelfExtend, _self_extend),
    "pcw": GoldenMethod(ParallelContextWindows),
    "ape": GoldenMethod(APE),
    "dysco": GoldenMethod(DySCO, _dysco),
    "compose": GoldenMethod(Compose, _compose),
}
