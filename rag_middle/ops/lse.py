"""Attention together with the log-sum-exp of its scores.

The log-sum-exp turns one score into one attention weight, ``a_ij = exp(s_ij - lse_i)``, without
the matrix of all weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["attention_with_lse", "logsumexp_rows"]

#: Elements of a block of scores held at once.
_BLOCK_ELEMENTS = 1 << 22


def attention_with_lse(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Causal (or masked) attention and its log-sum-exp, in one pass over the keys on CPU.

    Args:
        query: `[b, h, n, d]`.
        key: `[b, g, n, d]`.
        value: `[b, g, n, d]`.
        mask: ``None`` for causal, else boolean (true: visible) or additive `[b, 1, n, n]`.
        scale: factor on the scores.

    Returns:
        Output `[b, h, n, d]` and log-sum-exp `[b, h, n]` in float32.
    """
    on_cpu = query.device.type == "cpu" and query.shape[-1] == value.shape[-1]
    if on_cpu:
        if mask is not None and mask.dtype == torch.bool:
            # A finite minimum: rows of padding see nothing and must not become nan.
            lowest = torch.finfo(query.dtype).min
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, lowest)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        return out, lse.float()
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out, logsumexp_rows(query, key, mask=mask, scale=scale)


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
        mask: as in `attention_with_lse`; ``None`` or `[b, n]` means causal.
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
    grouped = query.float().reshape(b, g, h // g, n, d)
    keys = key.float().transpose(-1, -2)[:, :, None]
    columns = torch.arange(n, device=query.device)
    full_mask = mask if mask is not None and mask.ndim == 4 else None
    rows_per_block = max(1, _BLOCK_ELEMENTS // (b * h * n))
    parts = []
    for start in range(0, n, rows_per_block):
        stop = min(n, start + rows_per_block)
        scores = torch.matmul(grouped[..., start:stop, :], keys[..., :stop]) * scale
        scores = scores.view(b, h, stop - start, stop)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        rows = columns[start:stop, None]
        if full_mask is not None:
            block = full_mask[:, :, start:stop, :stop]
            if block.dtype == torch.bool:
                scores = scores.masked_fill(~block, torch.finfo(scores.dtype).min)
            else:
                scores = scores + block
        else:
            hidden = columns[None, :stop] > rows
            if window is not None:
                hidden = hidden | (rows - columns[None, :stop] >= window)
            if padding is not None:
                hidden = hidden[None] | (columns[None, None, :stop] < padding[:, None, None])
                hidden = hidden[:, None]
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        if sinks is not None:
            extra = sinks.float().view(1, h, 1, 1).expand(b, h, stop - start, 1)
            scores = torch.cat((scores, extra), dim=-1)
        parts.append(scores.logsumexp(-1))
    return torch.cat(parts, dim=-1)
