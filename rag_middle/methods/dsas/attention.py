"""Gates of documents in a transformers layer.

A score is linear in its key, so a factor on scores is a factor on keys: rows whose scores change
alike attend to a scaled copy of the keys, in one call without a matrix of factors.
"""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext, RowGroup
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_blocks.kernels import attend_later
from rag_middle.ops.scores import as_factor, document_tokens, products

if TYPE_CHECKING:
    from rag_middle.methods.dsas import DSAS


def attend_through_gates(method: DSAS, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
    """A layer's attention under DSAS."""
    if not context.in_prompt:
        return context.proceed()
    context.store()
    call, groups = context.call, context.layer.request.groups
    spans = [_changed_spans(group.layout) for group in groups]
    columns, width = call.query.shape[2], context.layer.request.width
    # Rows that stay as they are: before those that change, and after the prompt.
    kept = max(
        group.padding + of_group[0][0] if of_group and columns == width else columns
        for group, of_group in zip(groups, spans, strict=True)
    )
    output, _ = context.attention.attend(call.first_tokens(kept))
    whole = output.new_empty(output.shape[0], columns, *output.shape[2:])
    whole[:, :kept] = output
    for group, of_group in zip(groups, spans, strict=True):
        if of_group:
            _put_changed_rows(method, whole, context, group, of_group)
    return whole, None


def _changed_spans(layout: PromptLayout) -> list[tuple[int, int]]:
    """Tokens whose scores change: of documents after the first one, and of the suffix."""
    later = [span for span in layout.documents if span[1] > span[0]][1:]
    if not later or layout.suffix_start == layout.length:
        return []
    return [*later, (layout.suffix_start, layout.length)]


def _put_changed_rows(
    method: DSAS,
    whole: Tensor,
    context: AttentionContext,
    group: RowGroup,
    spans: list[tuple[int, int]],
) -> None:
    """Write the output of a group's rows at `spans` into `whole`, `[b, n, h, dv]`."""
    call, traits, layout = context.call, context.layer.traits, group.layout
    end = group.padding + layout.length
    query, key, value = (
        group.take(x)[:, :, group.padding : end] for x in (call.query, call.key, call.value)
    )
    device = query.device
    gamma, document_of = context.layer.request.shared(
        ("dsas documents", layout, device), lambda: _documents(layout, device)
    )
    relevance = document_relevance(query, key, layout, traits.score_scale, method.top_tokens)
    gates = document_gates(relevance, gamma, method.alpha, method.beta)
    rows = torch.cat((pair_factors(gates), suffix_factors(gates, method.beta)[:, None]), dim=1)
    factors = rows[:, -len(spans) :, document_of]  # [r, spans, T]
    around = (layout.prefix_tokens, layout.length - layout.suffix_start)
    factors = torch.nn.functional.pad(factors, around, value=1.0).to(key.dtype)
    rule = context.layer.score_rule(layout.length)
    positions = torch.arange(layout.length, device="cpu")
    for index, (start, stop) in enumerate(spans):
        read = attend_later(
            query[:, :, start:stop],
            key[:, :, :stop] * factors[:, index, None, :stop, None],
            value[:, :, :stop],
            layout,
            rule,
            positions[:stop],
            sinks=call.options.get("s_aux"),
        )
        whole[group.index, group.padding + start : group.padding + stop] = read.transpose(1, 2)


def _documents(layout: PromptLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exponents `[D]` of the documents with tokens, and whose each of their tokens is, `[T]`."""
    _, document_of = document_tokens([x for x in layout.document_lengths if x], device)
    gamma = torch.tensor(exponents(layout), dtype=torch.float32, device="cpu")
    return gamma.to(device), document_of


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


def document_gates(relevance: Tensor, gamma: Tensor, alpha: float, beta: float) -> Tensor:
    """Gates `[r, D]` from `beta` to 1, of relevances `[r, D]` and exponents `[D]`; `D` at least 2.

    Args:
        relevance: of the documents.
        gamma: `exponents` of them.
        alpha: factor on the exponents.
        beta: the smallest gate.
    """
    count = relevance.shape[-1]
    half = count // 2
    centred = relevance - relevance.mean(-1, keepdim=True)
    standardised = centred / (relevance.std(-1, keepdim=True) + 1e-8)
    gates = standardised.sigmoid() * 0.5 + 0.5
    order = gates.sort(dim=-1, descending=True, stable=True).indices
    rank = order.argsort(-1)
    raised = ((half + 1) / (rank + 1)) ** (alpha * gamma)
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
