"""What the perturbations change in an attention layer, for the tokens of documents."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    RowGroup,
    attention_scores,
    last_rows_attention,
    pair_tables,
)
from rag_middle.ops.rope import rotate

__all__ = ["Crop", "Move", "Multiply", "Mutual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change(LayerChange):
    """Of the document `documents[i]` of prompt `i`."""

    handler: ClassVar[type[_Handler]]

    documents: tuple[int, ...]

    def start(self, layer: Layer) -> LayerHandler:
        return self.handler(layer, self)


class _Handler(LayerHandler):
    """Attends as the model does, then computes some rows of the output anew."""

    def __init__(self, layer: Layer, change: Any) -> None:
        self._layer = layer
        self._change = change

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        output, _ = context.proceed()  # [b, n, h, dv]
        output = output.clone()
        layouts, documents = self._layer.request.row_layouts(), self._change.documents
        for row, (padding, layout) in enumerate(layouts):
            group = RowGroup(rows=(row,), padding=padding, layout=layout)
            span = layout.documents[documents[row * len(documents) // len(layouts)]]
            rows, attended = self._rows(context, group, span)
            if attended is not None:
                output[row, rows] = attended[0].transpose(0, 1).to(output.dtype)
        return output, None

    def _last_tokens(self, context: AttentionContext) -> int:
        """Rows of the last prompt token and what was generated after it."""
        return context.stop - max(context.start, self._layer.request.width - 1)

    def _weights(
        self, context: AttentionContext, group: RowGroup, key: Tensor, count: int
    ) -> Tensor:
        """Attention weights of the last `count` tokens over `key`, `[r, h, count, n]`."""
        padding = torch.full((len(group.rows),), group.padding, device=key.device)
        query = group.take(context.call.query)[:, :, -count:]
        return last_rows_attention(query, key, self._layer.traits, padding=padding)

    @abstractmethod
    def _rows(
        self, context: AttentionContext, group: RowGroup, span: tuple[int, int]
    ) -> tuple[slice, Tensor | None]:
        """Which rows of the call, and their output `[1, h, rows, dv]`; None for nothing.

        Args:
            context: of the call.
            group: one row of the batch.
            span: tokens of its prompt's perturbed document.
        """


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """`[r, h, rows, dv]` of weights `[r, h, rows, n]` and values `[r, g, n, dv]`."""
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], dim=1)
    return weights.to(values.dtype) @ values


class _CropHandler(_Handler):
    def _rows(
        self, context: AttentionContext, group: RowGroup, span: tuple[int, int]
    ) -> tuple[slice, Tensor | None]:
        start, end = (group.padding + at for at in span)
        rows = slice(start, end)
        if context.start or start == end:
            return rows, None  # the document has been read
        columns = sorted({group.padding, *range(start, end)})
        query = group.take(context.call.query)[:, :, rows]
        key, value = (group.take(x)[:, :, columns] for x in (context.call.key, context.call.value))
        scores = attention_scores(query, key, self._layer.traits)
        device = scores.device
        future = (
            torch.tensor(columns, device=device) > torch.arange(start, end, device=device)[:, None]
        )
        return rows, _weighted(scores.masked_fill(future, -torch.inf).softmax(-1), value)


class _MoveHandler(_Handler):
    def _rows(
        self, context: AttentionContext, group: RowGroup, span: tuple[int, int]
    ) -> tuple[slice, Tensor | None]:
        call, layout = context.call, group.layout
        count = self._last_tokens(context)
        start, end = span
        if start == end:
            return slice(0), None
        target = layout.prefix_tokens
        if self._change.to == "end":
            target = layout.suffix_start - (end - start)
        key, value = (group.take(x)[:, :, : context.stop] for x in (call.key, call.value))
        key = key.clone()
        moved = slice(group.padding + start, group.padding + end)
        key[:, :, moved] = self._turned(key[:, :, moved], target - start)
        weights = self._weights(context, group, key, count)
        return slice(call.query.shape[2] - count, None), _weighted(weights, value)

    def _turned(self, key: Tensor, shift: int) -> Tensor:
        """Rotated keys, rotated by `shift` positions more: ``R(m + s) = R(m) R(s)``."""
        traits, rotary = self._layer.traits, self._layer.rotary
        assert rotary is not None
        assert traits.rotary is not None
        cos, sin = rotary.at(torch.tensor([[0, shift]], device=rotary.x.device))
        tables = pair_tables(cos, sin, traits.rotary.table_format)
        cos, sin = (table[0].to(key.device) for table in tables)
        factor = cos[0]  # what yarn and its like multiply in: the keys bear it already
        return rotate(key, cos[1] / factor, sin[1] / factor, traits.rotary)


class _MultiplyHandler(_Handler):
    def _rows(
        self, context: AttentionContext, group: RowGroup, span: tuple[int, int]
    ) -> tuple[slice, Tensor | None]:
        call, count = context.call, self._last_tokens(context)
        start, end = (group.padding + at for at in span)
        key, value = (group.take(x)[:, :, : context.stop] for x in (call.key, call.value))
        weights = self._weights(context, group, key, count)
        weights[..., start:end] *= self._change.factor
        if self._change.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return slice(call.query.shape[2] - count, None), _weighted(weights, value)


class _MutualHandler(_Handler):
    def _rows(
        self, context: AttentionContext, group: RowGroup, span: tuple[int, int]
    ) -> tuple[slice, Tensor | None]:
        layout, pad = group.layout, group.padding
        first, last = pad + layout.prefix_tokens, pad + layout.suffix_start
        if context.start:
            return slice(0), None  # documents have been read
        key, value = (group.take(x)[:, :, pad:last] for x in (context.call.key, context.call.value))
        query, columns = group.take(context.call.query), torch.arange(pad, last, device=key.device)
        attended = []
        for start, end in layout.documents:
            own = torch.arange(pad + start, pad + end, device=key.device)[:, None]
            scores = attention_scores(query[:, :, own[:, 0]], key, self._layer.traits)
            hidden = (columns > own) & (columns < pad + end)  # later tokens of the same document
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            attended.append(_weighted(weights, value))
        return slice(first, last), torch.cat(attended, dim=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop(_Change):
    """See `CroppedMask`."""

    claims = frozenset({"visibility"})
    handler = _CropHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(_Change):
    """See `MovedPositions`."""

    claims = frozenset({"positions"})
    handler = _MoveHandler

    to: Literal["beginning", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply(_Change):
    """See `DoubledAttention`."""

    claims = frozenset({"weights"})
    handler = _MultiplyHandler

    factor: float
    renormalise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutual(_Change):
    """See `MutualDocuments`; of all documents."""

    claims = frozenset({"visibility", "positions"})
    handler = _MutualHandler
