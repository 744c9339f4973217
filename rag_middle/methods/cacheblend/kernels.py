"""Which tokens deviate most from a cache, and the attention of tokens chosen here and there."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.ops.scores import ScoreRule, attend_in_chunks, row_chunks, scores_at_once


def deviations(key: Tensor, cached_key: Tensor, value: Tensor, cached_value: Tensor) -> Tensor:
    """Squared distance of each token's keys and values from cached ones, over all heads.

    Args:
        key: `[r, g, n, d]`.
        cached_key: likewise, rotated at the same positions.
        value: `[r, g, n, dv]`.
        cached_value: likewise.

    Returns:
        `[r, n]` in float32.
    """
    of_keys = (key.float() - cached_key.float()).square().sum((1, 3))
    return of_keys + (value.float() - cached_value.float()).square().sum((1, 3))


def most_deviating(deviation: Tensor, share: float) -> Tensor:
    """Which tokens are recomputed: the `share` of them that deviates most, rounded down.

    Args:
        deviation: `[r, T]` of the tokens in documents.
        share: from 0 to 1.

    Returns:
        `[r, T]`, true for those that are.
    """
    chosen = deviation.topk(int(share * deviation.shape[1]), dim=1).indices
    return torch.zeros_like(deviation, dtype=torch.bool).scatter_(1, chosen, True)


@torch.no_grad()
def attend_from_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: Tensor,
    rule: ScoreRule,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of tokens that need not follow one another.

    Args:
        q: `[r, h, m, d]`.
        k: `[r, g, N, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, N, dv]`.
        columns: of the queries among the keys, `[m]`, ascending.
        rule: from dot products to scores; without a window.
        sinks: learned extra score per head, `[h]`.

    Returns:
        `[r, h, m, dv]`.
    """
    token = torch.arange(k.shape[2], device=q.device)
    if rule.softcap is not None or sinks is not None:
        return attend_in_chunks(q, k, v, rule, lambda a, b: token > columns[a:b, None], sinks=sinks)
    # Chunks: keys behind the last query of one are left out.
    r, h, m, _ = q.shape
    parts = []
    for start, stop in row_chunks(0, m, r * h * len(token), scores_at_once(q.device)):
        seen = token <= columns[start:stop, None]
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[:, :, start:stop], k, v, attn_mask=seen, scale=rule.scale, enable_gqa=True
            )
        )
    return torch.cat(parts, dim=2)
