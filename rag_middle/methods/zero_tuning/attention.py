"""Attention with a bias on the score of the initial token, head by head.

Of a prompt, ``out'_i = (out_i + (gamma_h - 1) a_i0 v_0) / (1 + (gamma_h - 1) a_i0)``: it takes the
initial token's weight in each row, never the matrix of weights. Generated tokens attend with a mask
that holds the bias: their rows are short, and launches are what they cost.
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
)


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
        context.store()
        call, request = context.call, context.layer.request
        device = call.query.device
        first = request.paddings(device)  # [b], column of each row's initial token
        factors = request.shared(
            ("zero tuning factors", self._factors, device),
            lambda: torch.tensor(self._factors, dtype=torch.float32, device="cpu").to(device),
        )
        if not context.in_prompt:
            bias = self._bias(context, first, factors)
            return context.attention.attend_biased(call, bias, context.stop), None
        output, weight = context.attention.attend_and_weigh(call)  # [b, h, n]
        step = ((factors - 1)[:, None] * weight).transpose(1, 2)[..., None]  # [b, n, h, 1]
        rows = torch.arange(first.shape[0], device=device)
        value = call.value[rows, :, first]  # [b, g, dv]
        value = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)[:, None]
        # Shares are float32, what they multiply keeps its format: a copy would be as long as it.
        # The initial token, which attends to nothing else, keeps its output to the last digit.
        most = min(torch.finfo(x.dtype).max for x in (step, output))
        kept = (1 / (1 + step)).clamp(max=most).to(output.dtype)
        return torch.lerp(value, output, kept), None

    def _bias(self, context: AttentionContext, first: Tensor, factors: Tensor) -> Tensor:
        """``log(gamma_h)`` on every row's initial token, `[b, h, 1, columns]`."""
        query, reach = context.call.query, context.layer.table_reach(context.stop)

        def make() -> Tensor:
            distance = torch.arange(reach, device=query.device) - first[:, None]  # [b, columns]
            bias = factors.log()[:, None] * (distance == 0)[:, None]
            return bias.masked_fill((distance < 0)[:, None], -torch.inf)[:, :, None].to(query)

        # With room for generated tokens: few of them make it anew.
        key = ("zero tuning bias", self._factors, query.device, query.dtype, reach)
        return context.layer.request.shared(key, make)
