"""Attention whose weight on the initial token is rescaled per document.

``out_i += (alpha_i - 1) a_i0 v_0`` with ``a_i0 = exp(s_i0 - lse_i)``: one score and the log-sum-exp
per row, never the matrix of weights. Renormalised, that is divided by ``1 + (alpha_i - 1) a_i0``.
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
from rag_middle.methods.siw.areas import DocumentTokens, document_density

_ALONE = 1e-6  # of a row's weights, left beside the initial token's: float32 rounding


class _Scaling(LayerChange):
    claims = frozenset({"weights"})

    token: int
    renormalise: bool

    def start(self, layer: Layer) -> LayerHandler:
        return _Handler(self)

    @abstractmethod
    def token_factors(self, context: AttentionContext) -> Tensor:
        """Factor of every token, `[b, n]` in float32; 1 outside the documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialTokenScaling(_Scaling):
    """Attention weights to one of the prompt's tokens are multiplied after the softmax.

    Attributes:
        factors: per example, one factor for each document's tokens; other tokens keep theirs.
        token: 0-based token of the prompt whose weights are multiplied.
        renormalise: divide a row's weights by their sum afterwards.
    """

    factors: tuple[tuple[float, ...], ...]
    token: int = 0
    renormalise: bool = False

    def check(self, layouts: Sequence[PromptLayout]) -> None:
        """Raise `MethodConfigError` unless there is one factor for each document."""
        for example, (factors, layout) in enumerate(zip(self.factors, layouts, strict=True)):
            if len(factors) != len(layout.documents):
                raise MethodConfigError(
                    f"Example {example} has {len(layout.documents)} documents but "
                    f"{len(factors)} factors: give one factor per document."
                )

    def token_factors(self, context: AttentionContext) -> Tensor:
        query, request = context.call.query, context.layer.request
        n, device = query.shape[2], query.device

        def make() -> Tensor:
            repeats = query.shape[0] // len(self.factors)
            of_rows = [
                torch.tensor(self.factors[row // repeats], dtype=torch.float32, device="cpu")
                for row in range(query.shape[0])
            ]
            return _of_tokens(of_rows, request, n, torch.device("cpu")).to(device)

        # Layers with the same factors share them: every copy to a GPU waits for it.
        return request.shared(("siw factors", self, n, device), make)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineAreas(_Scaling):
    """Like `InitialTokenScaling`, with factors found in the prompt's own attention.

    Attributes:
        alpha_dense: factor for documents that the last prompt token attends to densely.
        alpha_sparse: factor for the others.
        top_share: share of the prompt's tokens that count as attended to.
        token: 0-based token of the prompt whose weights are multiplied.
        renormalise: divide a row's weights by their sum afterwards.
    """

    alpha_dense: float
    alpha_sparse: float
    top_share: float
    token: int = 0
    renormalise: bool = False

    def token_factors(self, context: AttentionContext) -> Tensor:
        attention = context.attention.last_token_weights(context.call)
        request, query = context.layer.request, context.call.query
        # As float32 has them: what is beyond it is infinite.
        dense, sparse = torch.tensor(
            [self.alpha_dense, self.alpha_sparse], dtype=torch.float32, device="cpu"
        ).tolist()
        of_rows = []
        for row, (padding, layout) in enumerate(request.row_layouts()):
            tokens = _document_tokens(request, layout, attention.device)
            density = document_density(attention[row, padding:], layout, self.top_share, tokens)
            factors = torch.ones_like(density, dtype=torch.float32)
            of_rows.append(
                factors.masked_fill_(density > 0, dense).masked_fill_(density < 0, sparse)
            )
        return _of_tokens(of_rows, request, query.shape[2], query.device)


class _Handler(LayerHandler):
    def __init__(self, scaling: _Scaling) -> None:
        self._scaling = scaling

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        if not context.in_prompt:
            return context.proceed()  # generated tokens belong to no document
        context.store()
        call, request = context.call, context.layer.request
        first = request.paddings(call.query.device)  # [b], column of each row's initial token
        if self._scaling.token:
            first = first + self._scaling.token
        factors = self._scaling.token_factors(context)
        output, weight = context.attention.attend_and_weigh(call, self._scaling.token)
        if self._scaling.token:
            rows = torch.arange(weight.shape[2], device=weight.device)
            weight = weight.masked_fill((rows < first[:, None])[:, None], 0)
        step = ((factors - 1)[:, None] * weight).transpose(1, 2)[..., None]  # [b, n, h, 1]
        if self._scaling.renormalise:
            total = 1 + step
            # A row that attends to nothing else keeps its weight there, for a factor of 0 too.
            alone = total < _ALONE
            total = total.masked_fill(alone, 1)
            step = step.masked_fill(alone, 0) / total
            output = output / total.to(output.dtype)
        return _moved(output, step, call.value, first), None


def _moved(output: Tensor, step: Tensor, values: Tensor, first: Tensor) -> Tensor:
    """``out_i + step_i v_0``.

    Args:
        output: of the attention, `[b, n, h, dv]`.
        step: change of the initial token's weight in float32, `[b, n, h, 1]`.
        values: `[b, g, N, dv]`.
        first: column of each row's initial token, `[b]`.
    """
    rows = torch.arange(first.shape[0], device=first.device)
    value = values[rows, :, first]  # [b, g, dv]
    value = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)
    return output + step.to(output.dtype) * value[:, None]


def _of_tokens(of_rows: list[Tensor], request: Request, n: int, device: torch.device) -> Tensor:
    """Factor of every token, `[b, n]`, from one for each document of a row, float32 `[D]`."""
    whole = torch.ones(len(of_rows), n, device=device, dtype=torch.float32)
    for row, (factors, (padding, layout)) in enumerate(
        zip(of_rows, request.row_layouts(), strict=True)
    ):
        if layout.documents:
            start, end = padding + layout.prefix_tokens, padding + layout.suffix_start
            whole[row, start:end] = factors[_document_tokens(request, layout, device).document_of]
    return whole


def _document_tokens(
    request: Request, layout: PromptLayout, device: torch.device
) -> DocumentTokens:
    """Made once per request."""
    return request.shared(
        ("document tokens", layout, device), lambda: DocumentTokens.of(layout, device)
    )
