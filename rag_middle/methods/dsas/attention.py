"""Gates of documents in a transformers layer.

A score is linear in its key, so a factor on scores is a factor on keys: rows whose scores change
alike attend to a scaled copy of the keys, in one call without a matrix of factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext, RowGroup
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_blocks.kernels import attend_later
from rag_middle.methods.dsas.kernels import (
    document_gates,
    document_relevance,
    exponents,
    pair_factors,
    suffix_factors,
)

if TYPE_CHECKING:
    from rag_middle.methods.dsas import DSAS


def attend_through_gates(method: DSAS, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
    """A layer's attention under DSAS."""
    if not context.in_prompt:
        return context.proceed()
    context.store()
    call, groups = context.call, context.layer.request.groups
    spans = [_changed_spans(method, group.layout) for group in groups]
    columns, width = call.query.shape[2], context.layer.request.width
    # Rows that stay as they are: before those that change, and behind the prompt.
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


def _changed_spans(method: DSAS, layout: PromptLayout) -> list[tuple[int, int]]:
    """Tokens whose scores change: of documents behind the first one, and of the suffix."""
    later = [span for span in layout.documents if span[1] > span[0]][1:]
    if not later or layout.suffix_start == layout.length:
        return []
    if method.reference_code:
        return [(layout.length - 1, layout.length)]
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
    gates = document_gates(
        relevance, gamma, method.alpha, method.beta, reference_code=method.reference_code
    )
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
            positions[start:stop],
            positions[:stop],
            sinks=call.options.get("s_aux"),
        )
        whole[group.index, group.padding + start : group.padding + stop] = read.transpose(1, 2)


def _documents(layout: PromptLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exponents `[D]` of the documents with tokens, and whose each of their tokens is, `[T]`."""
    lengths = torch.tensor([length for length in layout.document_lengths if length], device="cpu")
    document_of = torch.arange(len(lengths), device="cpu").repeat_interleave(lengths)
    gamma = torch.tensor(exponents(layout), dtype=torch.float32, device="cpu")
    return gamma.to(device), document_of.to(device)
