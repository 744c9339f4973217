"""Which of several attentions a token listens to (MoICE, arXiv:2406.19598): router arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

__all__ = ["ExpertGate", "expert_weights"]


class ExpertGate(NamedTuple):
    """Router of one layer, shared by its heads: ``down(silu(gate x) * up x)``.

    Attributes:
        gate: `[E, d]`.
        down: `[E, E]`.
        up: `[E, d]`.
    """

    gate: Tensor
    down: Tensor
    up: Tensor


def expert_weights(query: Tensor, router: ExpertGate, top_k: int) -> Tensor:
    """Weights of the experts for every query: a softmax, of which the largest are kept.

    Args:
        query: `[..., d]`, rotated as the first expert rotates it.
        router: of the layer, on any device.
        top_k: experts kept; their weights are scaled to a sum of 1, others are 0.

    Returns:
        `[..., E]` in float32.
    """
    x = query.float()
    gate, down, up = (weight.to(x.device, torch.float32) for weight in router)
    weights = linear(silu(linear(x, gate)) * linear(x, up), down).softmax(-1)
    if top_k == weights.shape[-1]:
        return weights
    kept, indices = weights.topk(top_k, dim=-1)
    return torch.zeros_like(weights).scatter(-1, indices, kept / kept.sum(-1, keepdim=True))
