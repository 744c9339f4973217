"""Masks for a part of the query rows, in whatever form the backend takes them."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention import AttentionCall, backend_name


def last_rows_mask(call: AttentionCall, rows: int, keys: int) -> Tensor | None:
    """The mask of the last `rows` queries of a call that attends to `keys` keys.

    Args:
        call: the whole call; its mask is ``None`` (causal), `[b, k]` (padding only, flash
            attention) or `[b or 1, 1, n, k]`.
        rows: queries, counted from the end.
        keys: keys the rows attend to.
    """
    mask = call.mask
    if mask is not None:
        return mask[:, :, -rows:] if mask.ndim == 4 else mask
    if rows == 1 or rows == call.query.shape[2] or not _aligns_top_left(call):
        return None
    device = call.query.device
    row = torch.arange(keys - rows, keys, device=device)[:, None]
    visible = torch.arange(keys, device=device)[None, :] <= row
    return visible[None, None]


def _aligns_top_left(call: AttentionCall) -> bool:
    """Flash attention aligns a causal mask with the last key, sdpa with the first."""
    return "flash" not in backend_name(call.module)
