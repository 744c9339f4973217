"""Attention whose weight on the initial token is rescaled per document.

``out_i += (alpha_i - 1) a_i0 v_0`` with ``a_i0 = exp(s_i0 - lse_i)``: one score and the log-sum-exp
per row, never the matrix of weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rag_middle.attention import AttentionContext, Layer, LayerChange, LayerHandler, Request
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods.siw.areas import document_density

__all__ = ["InitialTokenScaling", "OnlineAreas"]


class _Scaling(LayerChange):
    claims = frozenset({"weights"})

    def start(self, layer: Layer) -> LayerHandler:
        return _Handler(self)

    @abstractmethod
    def by_document(self, context: AttentionContext) -> list[Tensor]:
        """One factor per document, float32 `[D]`, for every batch row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialTokenScaling(_Scaling):
    """Attention weights to the prompt's first token are multiplied after the softmax.

    Attributes:
        factors: per example, one factor for each document's tokens; other tokens keep theirs.
    """

    factors: tuple[tuple[float, ...], ...]

    def check(self, layouts: Sequence[PromptLayout]) -> None:
        """Raise `MethodConfigError` unless there is one factor for each document."""
        for example, (factors, layout) in enumerate(zip(self.factors, layouts, strict=True)):
            if len(factors) != len(layout.documents):
                raise MethodConfigError(
                    f"Example {example} has {len(layout.documents)} documents but "
                    f"{len(factors)} factors: give one factor per document."
                )

    def by_document(self, context: AttentionContext) -> list[Tensor]:
        query = context.call.query
        repeats = query.shape[0] // len(self.factors)
        by_prompt = [
            torch.tensor(factors, dtype=torch.float32, device=query.device)
            for factors in self.factors
        ]
        return [by_prompt[row // repeats] for row in range(query.shape[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAreas(_Scaling):
    """Like `InitialTokenScaling`, with factors found in the prompt's own attention.

    Attributes:
        alpha_dense: factor for documents that the last prompt token attends to densely.
        alpha_sparse: factor for the others.
        top_share: share of the prompt's tokens that count as attended to.
    """

    alpha_dense: float
    alpha_sparse: float
    top_share: float

    def by_document(self, context: AttentionContext) -> list[Tensor]:
        attention = context.attention.last_token_weights(context.call)
        densities = [
            document_density(attention[row, padding:], layout, self.top_share)
            if layout.documents
            else attention.new_zeros(0)
            for row, (padding, layout) in enumerate(context.layer.request.row_layouts())
        ]
        return [
            1.0 + (self.alpha_dense - 1) * (density > 0) + (self.alpha_sparse - 1) * (density < 0)
            for density in densities
        ]


class _Handler(LayerHandler):
    def __init__(self, scaling: _Scaling) -> None:
        self._scaling = scaling

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        if not context.in_prompt:
            return context.proceed()  # generated tokens belong to no document
        context.store()
        call, request = context.call, context.layer.request
        first = request.paddings(call.query.device)  # [b], column of each row's initial token
        factors = _token_factors(self._scaling.by_document(context), request, call.query.shape[2])
        output, weight = context.attention.attend_and_weigh(call, first)
        return _reweighted(output, weight, call.value, factors, first), None


def _reweighted(
    output: Tensor, weight: Tensor, values: Tensor, factors: Tensor, first: Tensor
) -> Tensor:
    """``out_i + (alpha_i - 1) a_i0 v_0``.

    Args:
        output: of the attention, `[b, n, h, dv]`.
        weight: of the initial token, `[b, h, n]`.
        values: `[b, g, N, dv]`.
        factors: ``alpha`` of every token, `[b, n]`.
        first: column of each row's initial token, `[b]`.
    """
    rows = torch.arange(first.shape[0], device=first.device)
    value = values[rows, :, first]  # [b, g, dv]
    value = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)
    step = ((factors - 1)[:, :, None] * weight.transpose(1, 2)).to(output.dtype)  # [b, n, h]
    return output + step[..., None] * value[:, None]


def _token_factors(by_document: list[Tensor], request: Request, n: int) -> Tensor:
    """Factor of every token, `[b, n]` in float32; 1 outside the documents."""
    rows = []
    for factors, (padding, layout) in zip(by_document, request.row_layouts(), strict=True):
        row = factors.new_ones(n, dtype=torch.float32)
        if layout.documents:
            lengths = torch.tensor(layout.document_lengths, device=factors.device)
            start = padding + layout.prefix_tokens
            row[start : start + layout.document_tokens] = factors.repeat_interleave(
                lengths, output_size=layout.document_tokens
            )
        rows.append(row)
    return torch.stack(rows)
