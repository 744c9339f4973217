"""The log-sum-exp of attention scores where no fused kernel returns it.

The log-sum-exp turns one score into one attention weight, ``a_ij = exp(s_ij - lse_i)``, without
the matrix of all weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.ops.scores import as_factor, products

#: Elements of a block of scores held at once.
_BLOCK_ELEMENTS = 1 << 22


def logsumexp_rows(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
    padding: Tensor | None = None,
) -> Tensor:
    """Log-sum-exp of each query's scores, block by block (memory linear in `n`).

    Args:
        query: `[b, h, n, d]`.
        key: `[b, g, n, d]`, the same tokens.
        mask: boolean (true: visible) or additive `[b, 1, n, n]`; ``None`` or `[b, n]` means causal.
        scale: factor on the scores.
        softcap: scores become ``softcap * tanh(score / softcap)``.
        sinks: learned extra score per head `[h]`.
        window: tokens a query sees back, itself included.
        padding: columns of left padding per row `[b]`, used where `mask` is ``None``.

    Returns:
        `[b, h, n]` in float32.
    """
    b, h, n, d = query.shape
    g = key.shape[1]
    grouped = as_factor(query.reshape(b * g, h // g, n, d))
    keys = as_factor(key.reshape(b * g, n, d))
    columns = torch.arange(n, device=query.device)
    full_mask = mask if mask is not None and mask.ndim == 4 else None
    rows_per_block = max(1, _BLOCK_ELEMENTS // (b * h * n))
    parts = []
    for start in range(0, n, rows_per_block):
        stop = min(n, start + rows_per_block)
        rows = grouped[:, :, start:stop].flatten(1, 2)
        scores = products(rows, keys[:, :stop]).view(b, h, stop - start, stop) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        row = columns[start:stop, None]
        if full_mask is not None:
            block = full_mask[:, :, start:stop, :stop]
            if block.dtype == torch.bool:
                scores = scores.masked_fill(~block, torch.finfo(scores.dtype).min)
            else:
                scores = scores + block
        else:
            hidden = columns[None, :stop] > row
            if window is not None:
                hidden = hidden | (row - columns[None, :stop] >= window)
            if padding is not None:
                hidden = hidden[None] | (columns[None, None, :stop] < padding[:, None, None])
                hidden = hidden[:, None]
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        if sinks is not None:
            extra = sinks.float().view(1, h, 1, 1).expand(b, h, stop - start, 1)
            scores = torch.cat((scores, extra), dim=-1)
        parts.append(scores.logsumexp(-1))
    return torch.cat(parts, dim=-1)
