"""Gates of documents, and what they do to scores (DSAS, arXiv:2510.12251), as tensor operations."""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.ops.scores import as_factor, products

if TYPE_CHECKING:
    from rag_middle.layout import PromptLayout


def document_relevance(
    query: Tensor, key: Tensor, layout: PromptLayout, scale: float, top_tokens: int
) -> Tensor:
    """How much the suffix looks at each document.

    Args:
        query: `[r, h, n, d]`, all rows of one layout, rotated.
        key: `[r, g, n, d]`, rotated.
        layout: of the prompt, with a suffix; documents of no tokens are left out.
        scale: from dot products to scores.
        top_tokens: tokens of a document that count.

    Returns:
        `[r, D]` in float32.
    """
    start, last = layout.suffix_start, layout.length - 1
    h, (r, g, _, d) = query.shape[1], key.shape
    question = max(1, last - start)
    # Scores are summed over rows and heads: so are queries, before they meet any key. As means,
    # because sums may exceed what float16 holds.
    mean = query[:, :, start:last].float().sum(2) / question + query[:, :, last].float()
    mean = mean.view(r * g, -1, d).mean(1, keepdim=True)
    keys = as_factor(key[:, :, :start].reshape(r * g, start, d))
    scores = products(mean.to(keys.dtype), keys).view(r, g, start).sum(1)
    scores = scores * (scale * question * (h // g))
    spans = [(first, end) for first, end in layout.documents if end > first]
    return torch.stack(
        [
            scores[:, first:end].topk(min(top_tokens, end - first), dim=-1).values.sum(-1)
            for first, end in spans
        ],
        dim=-1,
    )


def exponents(layout: PromptLayout) -> list[float]:
    """Mean density, in standard deviations, of a Gaussian over the prompt on each document.

    The Gaussian has mean and standard deviation of the positions of all tokens but the last.
    """
    tokens = layout.length - 1
    mean, deviation = (tokens - 1) / 2, sqrt(tokens * (tokens + 1) / 12)
    values = []
    for first, end in layout.documents:
        low, high = ((token - mean) / deviation for token in (first, end - 1))
        if end - first == 1:
            values.append(exp(-(low**2) / 2) / sqrt(2 * pi))
        elif end > first:
            share = (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2
            values.append(share / (high - low))
    return values


def document_gates(
    relevance: Tensor, gamma: Tensor, alpha: float, beta: float, *, reference_code: bool
) -> Tensor:
    """Gates `[r, D]` from `beta` to 1, of relevances `[r, D]` and exponents `[D]`; `D` at least 2.

    Args:
        relevance: of the documents.
        gamma: `exponents` of them.
        alpha: factor on the exponents.
        beta: the smallest gate.
        reference_code: exponents go by rank in place of document, see `DSAS`.
    """
    count = relevance.shape[-1]
    half = count // 2
    centred = relevance - relevance.mean(-1, keepdim=True)
    standardised = centred / (relevance.std(-1, keepdim=True) + 1e-8)
    gates = standardised.sigmoid() * 0.5 + 0.5
    order = gates.sort(dim=-1, descending=True, stable=True).indices
    rank = order.argsort(-1)
    power = gamma.expand_as(gates)
    if reference_code:
        by_index = power.gather(-1, order)
        first = torch.arange(count, device=gates.device) < half
        power = torch.where(first, by_index, 1.0)
    raised = ((half + 1) / (rank + 1)) ** (alpha * power)
    gates = gates * torch.where(rank < half, raised, 1.0)
    least, most = gates.amin(-1, keepdim=True), gates.amax(-1, keepdim=True)
    return beta + (1 - beta) * (gates - least) / (most - least + 1e-8)


def suffix_factors(gates: Tensor, beta: float) -> Tensor:
    """What the suffix's scores on each document are multiplied by, `[r, D]`."""
    return torch.where(gates < 0.5 * (beta + 1), gates, 1.0)


def pair_factors(gates: Tensor) -> Tensor:
    """What scores of document `i` on an earlier document `j` are multiplied by, `[r, D, D]`."""
    above = gates > gates.mean(-1, keepdim=True)
    differ = above[:, :, None] != above[:, None, :]
    return torch.where(differ, torch.minimum(gates[:, :, None], gates[:, None, :]), 1.0)
