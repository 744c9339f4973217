"""Attention with a bias on the score of the initial token, head by head.

``out'_i = (out_i + (gamma_h - 1) a_i0 v_0) / (1 + (gamma_h - 1) a_i0)``: it takes the initial
token's weight in each row, never the matrix of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    last_rows_attention,
)

__all__ = ["InitialTokenBias"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialTokenBias(LayerChange):
    """Weights on the initial token are multiplied after the softmax, and rows normalised again.

    Attributes:
        factors: one for each query head of the layer.
    """

    claims = frozenset({"weights"})

    factors: tuple[float, ...]

    def start(self, layer: Layer) -> LayerHandler:
        return _Handler(self.factors)


class _Handler(LayerHandler):
    def __init__(self, factors: tuple[float, ...]) -> None:
        self._factors = factors

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        call, request = context.call, context.layer.request
        device = call.query.device
        first = request.paddings(device)  # [b], column of each row's initial token
        if context.in_prompt:
            context.store()
            output, weight = context.attention.attend_and_weigh(call, first)  # [b, h, n]
        else:
            output, _ = context.proceed()
            # A sliding layer's cache drops the oldest columns, the initial token among them.
            first = first - max(0, context.stop - call.key.shape[2])
            weight = _later_weight(context, first)
        step = request.shared(
            ("zero tuning factors", self._factors, device),
            lambda: torch.tensor(self._factors, dtype=torch.float32).to(device) - 1,
        )
        step = (step[:, None] * weight).transpose(1, 2)[..., None]  # [b, n, h, 1]
        rows = torch.arange(first.shape[0], device=device)
        value = call.value[rows, :, first.clamp(min=0)]  # [b, g, dv]
        value = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)[:, None]
        # Shares are float32, what they multiply keeps its format: a copy would be as long as it.
        kept = 1 / (1 + step)
        added = (step * kept).to(output.dtype)
        return torch.addcmul(output * kept.to(output.dtype), added, value), None


def _later_weight(context: AttentionContext, first: Tensor) -> Tensor:
    """What tokens after the prompt give to stored column `first`, `[b, h, m]` in float32."""
    call, traits = context.call, context.layer.traits
    # A static cache is longer than its content.
    end = min(context.stop, call.key.shape[2])
    weights = last_rows_attention(
        call.query, call.key[:, :, :end], traits, padding=first, sinks=call.options.get("s_aux")
    )
    index = first.clamp(min=0)[:, None, None, None].expand(*weights.shape[:3], 1)
    weight = weights.gather(-1, index)[..., 0]
    return weight.masked_fill((first < 0)[:, None, None], 0)
