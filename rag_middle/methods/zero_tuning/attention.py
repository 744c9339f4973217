"""Attention with a bias on the score of the initial token, head by head.

Of a prompt, ``out'_i = (out_i + (gamma_h - 1) a_i0 v_0) / (1 + (gamma_h - 1) a_i0)``: it takes the
initial token's weight in each row, never the matrix of weights. Generated tokens attend with a mask
that holds the bias: their rows are short, and launches are what they cost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext
from rag_middle.methods.siw.attention import value_at


def attend_biasing_initial_token(
    factors: tuple[float, ...], context: AttentionContext
) -> tuple[Tensor, Tensor | None]:
    """A layer's attention, its weights on the initial token times one factor for each head."""
    context.store()
    call, request = context.call, context.layer.request
    device = call.query.device
    first = request.paddings(device)  # [b], column of each row's initial token
    gamma = request.shared(
        ("zero tuning factors", factors, device),
        lambda: torch.tensor(factors, dtype=torch.float32, device="cpu").to(device),
    )
    if not context.in_prompt:
        # With room for generated tokens: few of them make it anew.
        reach = context.layer.table_reach(context.stop)
        bias = request.shared(
            ("zero tuning bias", factors, device, call.query.dtype, reach),
            lambda: _bias(gamma, first, reach).to(call.query),
        )
        return context.attention.attend_biased(call, bias, context.stop), None
    output, weight = context.attention.attend_and_weigh(call)  # [b, h, n]
    step = ((gamma - 1)[:, None] * weight).transpose(1, 2)[..., None]  # [b, n, h, 1]
    # Shares are float32, what they multiply keeps its format: a copy would be as long as it.
    # The initial token, which attends to nothing else, keeps its output to the last digit.
    most = min(torch.finfo(x.dtype).max for x in (step, output))
    kept = (1 / (1 + step)).clamp(max=most).to(output.dtype)
    return torch.lerp(value_at(call.value, first, output.shape[2]), output, kept), None


def _bias(gamma: Tensor, first: Tensor, columns: int) -> Tensor:
    """``log(gamma_h)`` on every row's initial token, `-inf` before it, `[b, h, 1, columns]`."""
    distance = torch.arange(columns, device=first.device) - first[:, None]  # [b, columns]
    bias = gamma.log()[:, None] * (distance == 0)[:, None]
    return bias.masked_fill((distance < 0)[:, None], -torch.inf)[:, :, None]
