"""Gates of documents in a transformers layer.

A score is linear in its key, so a factor on scores is a factor on keys: rows whose scores change
alike attend to a scaled copy of the keys, in one call without a matrix of factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    RowGroup,
)
from rag_middle.methods.dsas.kernels import (
    document_gates,
    document_relevance,
    exponents,
    pair_factors,
    suffix_factors,
)
from rag_middle.methods.parallel_context.kernels import attend_later

__all__ = ["DocumentGates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentGates(LayerChange):
    """Scores on documents are multiplied by gates; the attributes are those of `DSAS`."""

    claims = frozenset({"weights"})

    alpha: float
    beta: float
    top_tokens: int
    reference_code: bool

    def start(self, layer: Layer) -> LayerHandler:
        return _Handler(self)


class _Handler(LayerHandler):
    def __init__(self, gates: DocumentGates) -> None:
        self._gates = gates

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        if not context.in_prompt:
            return context.proceed()
        output, _ = context.proceed()  # of rows that stay as they are
        changed = output.clone()
        for group in context.layer.request.groups:
            layout = group.layout
            lengths = [length for length in layout.document_lengths if length]
            if len(lengths) < 2 or layout.suffix_start == layout.length:
                continue
            rows = self._changed_rows(context, group)  # [r, h, m, dv], up to the prompt's end
            end = group.padding + layout.length
            changed[group.index, end - rows.shape[2] : end] = rows.transpose(1, 2)
        return changed, None

    def _changed_rows(self, context: AttentionContext, group: RowGroup) -> Tensor:
        call, traits, layout = context.call, context.layer.traits, group.layout
        end = group.padding + layout.length
        query, key, value = (
            group.take(x)[:, :, group.padding : end] for x in (call.query, call.key, call.value)
        )
        device = query.device
        gamma, document_of = context.layer.request.shared(
            ("dsas documents", layout, device), lambda: _documents(group, device)
        )
        settings = self._gates
        gates = document_gates(
            document_relevance(query, key, layout, traits.score_scale, settings.top_tokens),
            gamma,
            settings.alpha,
            settings.beta,
            reference_code=settings.reference_code,
        )
        rule = context.layer.score_rule(layout.length)
        positions = torch.arange(layout.length)
        first = layout.prefix_tokens
        # Nothing is before the first document that has a gate.
        _, *later = [span for span in layout.documents if span[1] > span[0]]
        later.append((layout.suffix_start, layout.length))
        factors = [*pair_factors(gates).unbind(1)[1:], suffix_factors(gates, settings.beta)]
        if settings.reference_code:
            later, factors = [(layout.length - 1, layout.length)], factors[-1:]
        parts = []
        for (start, stop), factor in zip(later, factors, strict=True):
            scaled = key[:, :, :stop].clone()
            read = min(start, layout.suffix_start)
            earlier = factor[:, document_of[: read - first]]  # [r, read - P]
            scaled[:, :, first:read] *= earlier[:, None, :, None].to(key.dtype)
            parts.append(
                attend_later(
                    query[:, :, start:stop],
                    scaled,
                    value[:, :, :stop],
                    layout,
                    rule,
                    positions[start:stop],
                    positions[:stop],
                    sinks=call.options.get("s_aux"),
                )
            )
        return torch.cat(parts, dim=2)


def _documents(group: RowGroup, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exponents `[D]` of the documents with tokens, and whose each of their tokens is, `[T]`."""
    lengths = torch.tensor([length for length in group.layout.document_lengths if length])
    document_of = torch.arange(len(lengths)).repeat_interleave(lengths)
    gamma = torch.tensor(exponents(group.layout), dtype=torch.float32)
    return gamma.to(device), document_of.to(device)
