"""What DySCO (arXiv:2602.22175) makes of attention weights: relevance, and selected tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def updated_relevance(attention: Tensor, earlier: Tensor | None, decay: float) -> Tensor:
    """Relevance `[b, n]` of all tokens so far, each row with a sum of one.

    Args:
        attention: of the newest token over all, averaged over retrieval heads, `[b, n]`; zero in
            rows where it is padding.
        earlier: relevance found at the tokens before, `[b, m]` with `m <= n`; ``None`` for none.
        decay: of `earlier`.
    """
    relevance = attention
    if earlier is not None:
        width = attention.shape[1] - earlier.shape[1]
        relevance = attention + decay * torch.nn.functional.pad(earlier, (0, width))
    # Rows of padding stay zero.
    total = relevance.sum(-1, keepdim=True)
    return relevance / total.clamp(min=torch.finfo(total.dtype).tiny)


def selected_tokens(relevance: Tensor, top_p: float, top_k: int) -> Tensor:
    """The most relevant tokens, as `[b, n]` of truth values.

    As many as hold `top_p` of the relevance or less together, at least one and at most `top_k`.

    Args:
        relevance: `[b, n]`, with a sum of one per row.
        top_p: the share.
        top_k: the number.
    """
    values, order = relevance.topk(min(top_k, relevance.shape[1]))
    kept = values.cumsum(-1) <= top_p
    kept[:, 0] = True
    return torch.zeros_like(relevance, dtype=torch.bool).scatter(-1, order, kept)
