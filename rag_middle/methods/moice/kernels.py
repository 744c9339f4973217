"""Several attentions of one token, and which of them it listens to (MoICE, arXiv:2406.19598)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from rag_middle.ops.rope import RotaryStyle
from rag_middle.ops.scores import as_factor, products, weighed


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


def expert_scores(
    query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, style: RotaryStyle
) -> Tensor:
    """Dot products of one token's query and every key, as each expert rotates the two.

    A pair of dimensions adds ``(q . k) cos t + (q x k) sin t``, ``t`` the angle from query to key.
    Only ``t`` depends on the expert: the two products are taken once, and no key is rotated.

    Args:
        query: un-rotated, `[b, h, d]`.
        keys: un-rotated, `[b, g, n, d]`.
        cos: of the angles by which the query is ahead of every key, `[n, E, r]`.
        sin: like `cos`.
        style: pairing of the model.

    Returns:
        `[b, h, E, n]` in float32.
    """
    b, h, d = query.shape
    g, n, pairs = keys.shape[1], keys.shape[2], style.pairs
    grouped = query.view(b, g, h // g, 1, d)
    if style.pairing == "half":
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    q1, q2, k1, k2 = (x[..., part] for x in (grouped, keys[:, :, None]) for part in (first, second))
    along = torch.addcmul(q1 * k1, q2, k2)  # [b, g, h/g, n, r]
    across = torch.addcmul(q1 * k2, q2, k1, value=-1)
    by_key = (as_factor(x).flatten(0, 2).transpose(0, 1) for x in (along, across))
    parts = [products(x, as_factor(of)) for x, of in zip(by_key, (cos, sin), strict=True)]
    scores = (parts[0] + parts[1]).permute(1, 2, 0).view(b, h, -1, n)
    if 2 * pairs == d:
        return scores
    rest = (as_factor(x[..., 2 * pairs :].reshape(b * g, -1, d - 2 * pairs)) for x in (query, keys))
    return scores + products(*rest).view(b, h, 1, n)


def mixed_values(
    scores: Tensor, shares: Tensor, values: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """What a token reads: the values by the mean of the experts' attention weights.

    Args:
        scores: under each expert's softmax, `[b, h, E, n]`.
        shares: weights of the experts, `[b, h, E]` in float32.
        values: `[b, g, n, dv]`.
        sinks: learned extra score per head, `[h]`, which takes its share.

    Returns:
        `[b, h, dv]` in the values' dtype.
    """
    b, h, experts, n = scores.shape
    if sinks is not None:
        extra = sinks.float()[None, :, None, None].expand(b, h, experts, 1)
        scores = torch.cat((scores, extra), dim=-1)
    attention = scores.softmax(-1, dtype=shares.dtype).flatten(0, 1)  # a mask may have another
    mean = torch.bmm(shares.reshape(b * h, 1, experts), attention)[..., :n]
    g = values.shape[1]
    return weighed(mean.view(b * g, h // g, n), values.flatten(0, 1)).view(b, h, -1)
