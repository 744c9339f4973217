"""How position-aware an attention head is (Ms-PoE, arXiv:2403.04797, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.ops.scores import as_factor, products


def position_awareness(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    threshold: float | None,
    strict: bool = False,
    padding: Tensor | None = None,
) -> Tensor:
    """Share of the prompt that the last token attends to far above average.

    ``S = mean_i[ A_i >= threshold * mean(A) ]`` with ``A`` the attention of the last prompt token.

    Args:
        query: the last prompt token's query `[b, h, d]`, without position embedding.
        key: keys `[b, g, n, d]` of the prompt, without position embedding.
        scale: factor on query-key products.
        threshold: multiple of the mean from which on a token counts (3 in the paper); ``None`` for
            the entropy of ``A``, in nats, instead of that share.
        strict: a token at exactly that multiple does not count.
        padding: columns of left padding per row `[b]`; not counted.

    Returns:
        `[b, h]` in float32. Linear in `n`: only one row of the attention matrix is computed.
    """
    b, h, d = query.shape
    g, n = key.shape[1], key.shape[2]
    # float32: near-ties between heads decide their order, bf16 would flip them.
    grouped = as_factor(query.reshape(b * g, h // g, d))
    scores = products(grouped, as_factor(key.reshape(b * g, n, d))).view(b, h, n) * scale
    reaches = torch.gt if strict else torch.ge
    if threshold is None:
        if padding is not None:
            hidden = torch.arange(n, device=key.device)[None, :] < padding[:, None]
            scores = scores.masked_fill(hidden[:, None], float("-inf"))
        entropy: Tensor = torch.special.entr(scores.softmax(-1)).sum(-1)
        return entropy
    if padding is None:
        return reaches(scores.softmax(-1), threshold / n).float().mean(-1)
    real = torch.arange(n, device=key.device)[None, :] >= padding[:, None]
    attention = scores.masked_fill(~real[:, None], float("-inf")).softmax(-1)
    tokens = (n - padding)[:, None].float()
    return reaches(attention, threshold / tokens[..., None]).float().sum(-1) / tokens


def assigned_ratios(awareness: Tensor, ratios: int, assign: str) -> Tensor:
    """Index of each head's ratio.

    Args:
        awareness: `[b, heads]`.
        ratios: how many there are, as many as heads; the first is for the most position-aware one.
        assign: ``"rank"``: head ``i`` gets the ratio of its rank. ``"order"``: head ``i`` gets
            ratio number ``argsort(awareness)[i]``. ``"sequential"``: head ``i`` gets ratio ``i``.

    Returns:
        Indices of ratios, `[b, heads]`. Ties keep the order of the heads.
    """
    if assign == "sequential":
        return torch.arange(ratios, device=awareness.device).expand(awareness.shape[0], ratios)
    order = awareness.argsort(dim=-1, descending=True, stable=True)
    return order if assign == "order" else order.argsort(dim=-1, stable=True)
