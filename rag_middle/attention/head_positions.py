"""Rotation by head-wise rescaled positions (Ms-PoE)."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention.plan import HeadPositionScale
from rag_middle.attention.request import Request
from rag_middle.attention.rotary import RotaryCall
from rag_middle.attention.seam import AttentionCall
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.awareness import assigned_ratios, position_awareness
from rag_middle.ops.rope import WideTables, rotate_wide

__all__ = ["HeadRotation"]


class HeadRotation:
    """Rotates one layer's queries and keys, each head on its own scale.

    The scales are chosen at the prompt's forward pass from the last token's attention, and kept
    for the tokens generated after it.
    """

    def __init__(self, traits: LayerTraits, scale: HeadPositionScale) -> None:
        self._traits = traits
        self._scale = scale
        #: Index of each head's ratio, `[b, h]` or `[b, g]`.
        self._choice: Tensor | None = None

    def rotate(self, call: AttentionCall, rotary: RotaryCall, request: Request, start: int) -> None:
        """Replace the call's un-rotated query and key by rotated ones."""
        if start == 0:
            self._choice = self._choose(call, request)
        choice, style = self._choice, self._traits.rotary
        assert choice is not None
        assert style is not None
        groups = self._traits.heads // self._traits.kv_heads
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
        call.query = rotate_wide(call.query, of_queries, style)
        call.key = rotate_wide(call.key, of_keys, style)

    def _choose(self, call: AttentionCall, request: Request) -> Tensor:
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
        ratios = torch.tensor(self._scale.ratios, device=device)
        return assigned_ratios(awareness, ratios, self._scale.assign)


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
