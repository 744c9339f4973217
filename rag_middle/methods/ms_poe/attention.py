"""Rotation by head-wise rescaled positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    LayerStack,
    RotaryCall,
)
from rag_middle.methods.ms_poe.kernels import assigned_ratios, position_awareness
from rag_middle.ops.rope import RotaryStyle, WideTables, rotate_wide

__all__ = ["HeadPositionScale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPositionScale(LayerChange):
    """Each head uses positions ``m / ratio``, its ratio chosen once per prompt.

    Attributes:
        ratios: one ratio per rank, most position-aware head first. Length ``h`` where
            `per_query_head`, else ``g``.
        assign: ``"rank"`` gives a head the ratio of its rank by position awareness, ``"order"``
            the ratio numbered by the argsort itself, ``"sequential"`` the ratio of its own index.
        threshold: attention of at least `threshold` times the mean counts as aware; ``None`` to
            rank heads by the entropy of that attention instead, the highest first.
        strict: only attention above that multiple counts, not equal to it.
        per_query_head: queries of one key/value group may use different ratios; their key uses
            the ratio of the group's first head. Otherwise a group shares one ratio.
    """

    claims = frozenset({"positions"})
    defers_rotation = True

    ratios: tuple[float, ...]
    assign: Literal["rank", "order", "sequential"]
    threshold: float | None
    strict: bool
    per_query_head: bool

    def start(self, layer: Layer) -> LayerHandler:
        return _HeadRotation(layer, self)


class _HeadRotation(LayerHandler):
    """Rotates one layer's queries and keys, each head on its own scale.

    The scales are chosen at the prompt's forward pass from the last token's attention, and kept
    for the tokens generated after it.
    """

    def __init__(self, layer: Layer, scale: HeadPositionScale) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._scale = scale
        #: Index of each head's ratio, `[b, h]` or `[b, g]`.
        self._choice: Tensor | None = None
        #: The same of query heads and then key heads, `[b, h + g]`, with those of other layers.
        self._stack = LayerStack()

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Replace the call's un-rotated query and key by rotated ones."""
        call, rotary = context.call, self._layer.rotary
        assert rotary is not None
        groups = self._traits.heads // self._traits.kv_heads
        if context.start == 0:
            self._choice = self._choose(context)
            if self._scale.per_query_head:
                both = (self._choice, self._choice[:, ::groups])
            else:
                both = (self._choice.repeat_interleave(groups, dim=1), self._choice)
            self._stack = self._layer.layer_stack(("ratios", self._scale.ratios), call.query.device)
            self._stack.put(self._traits.layer, torch.cat(both, dim=1))
        choice, style = self._choice, self._traits.rotary
        assert choice is not None
        assert style is not None
        if call.query.shape[2] == 1 and not self._traits.norms_after_rope:
            self._rotate_token(call, rotary, style)
            return context.proceed()
        tables = rotary.wide(self._scale.ratios, self._traits.table_format, style)
        if self._scale.per_query_head:
            of_queries = _pick(tables, choice)
            of_keys = WideTables(*(table[:, ::groups] for table in of_queries))
        else:
            of_queries = of_keys = _pick(tables, choice)
            if groups > 1:
                of_queries = WideTables(
                    *(table.repeat_interleave(groups, dim=1) for table in of_keys)
                )
        call.query, call.key = self._layer.normalised(
            rotate_wide(call.query, of_queries, style), rotate_wide(call.key, of_keys, style)
        )
        return context.proceed()

    def _rotate_token(self, call: AttentionCall, rotary: RotaryCall, style: RotaryStyle) -> None:
        """Rotate one token's query and key together: launches are all that a token costs here."""

        def pick(choices: Tensor) -> tuple[Tensor, ...]:
            """Cosine and sine of every layer, row and head, `[layers, b, h + g, 1, 2r]`."""
            wide = rotary.wide(self._scale.ratios, self._traits.table_format, style)
            tables = torch.stack(wide, dim=2).to(choices.device)  # [ratios, b or 1, 2, 1, 2r]
            if tables.shape[1] == 1:
                return tables[:, 0][choices].unbind(3)
            rows = torch.arange(tables.shape[1], device=tables.device)[:, None]
            return tables[choices, rows].unbind(3)

        cos, sin = rotary.of_layer(self._traits.layer, self._stack, pick)
        both = torch.cat((call.query, call.key), dim=1)
        rotated = rotate_wide(both, WideTables(cos, sin), style)
        call.query, call.key = rotated.tensor_split((self._traits.heads,), dim=1)

    def _choose(self, context: AttentionContext) -> Tensor:
        call, request = context.call, self._layer.request
        last = request.width - 1
        device = call.query.device
        padded = any(group.padding for group in request.groups)
        awareness = position_awareness(
            call.query[:, :, last],
            call.key[:, :, : request.width],
            scale=self._traits.score_scale,
            threshold=self._scale.threshold,
            strict=self._scale.strict,
            padding=request.paddings(device) if padded else None,
        )
        if not self._scale.per_query_head:
            b, h = awareness.shape
            g = self._traits.kv_heads
            awareness = awareness.view(b, g, h // g).mean(-1)
        return assigned_ratios(awareness, len(self._scale.ratios), self._scale.assign)


def _pick(tables: WideTables, choice: Tensor) -> WideTables:
    """Each row's and head's tables, `[b, heads, n, 2r]`.

    Args:
        tables: `[ratios, b or 1, n, 2r]`, possibly on another device than the layer.
        choice: index of each head's ratio, `[b, heads]`.
    """
    cos, sin = (table.to(choice.device) for table in tables)
    if cos.shape[1] == 1:
        return WideTables(cos[:, 0][choice], sin[:, 0][choice])
    rows = torch.arange(choice.shape[0], device=choice.device)[:, None]
    return WideTables(cos[choice, rows], sin[choice, rows])
