"""Documents in a circle, in a transformers layer: rows, paddings and caches around the attention.

The model rotates queries and keys as it always does. Only the rows of documents attend to other
keys than the model's own, in the prompt's forward pass; what is cached, and every generated token,
is the unmodified model's on the prompt as arranged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    Layer,
    RowGroup,
    base_attention,
    join_rows,
)
from rag_middle.attention.request import row_groups
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_blocks.attention import DocumentsLast
from rag_middle.methods.rotor.kernels.circle import (
    CircleRotations,
    attend_by_document,
    attend_circle,
)
from rag_middle.methods.rotor.kernels.launch import CHECK, attend_triton
from rag_middle.ops.flash import with_sinks
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.scores import ScoreRule


class CircleAttention(DocumentsLast):
    """Attention of one layer with documents in a circle, during one request.

    Args:
        layer: in a request.
        alternating: every other prompt, from the first on, is read as the unmodified model does.
    """

    def __init__(self, layer: Layer, *, alternating: bool) -> None:
        super().__init__(layer)
        self._alternating = alternating

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Rows by layout, those read as they are without documents."""
        request = self._layer.request
        if not self._alternating:
            return request.groups

        def make() -> tuple[RowGroup, ...]:
            layouts = list(request.layouts)
            layouts[::2] = [PromptLayout(layout.length) for layout in layouts[::2]]
            return row_groups(layouts, request.rows, request.width)

        return request.shared("circle groups", make)

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]`: queries and keys come rotated by the model."""
        call = context.call
        tensors = call.query, call.key, call.value  # of the call alone: caches may be longer
        context.store()
        if context.start > 0:
            return base_attention(call)
        request = self._layer.request
        style = None if self._layer.rotary is None else self._traits.rotary
        rule = self._layer.score_rule(context.stop)
        columns, sinks = call.query.shape[2], call.options.get("s_aux")
        if uses_triton(request.kernels, *tensors, CHECK, style=style, rule=rule):
            return self._by_triton(call, rule), None
        groups = self.groups
        outputs = []
        for group in groups:
            # Without a cache, generated tokens come again with the prompt: part of the suffix.
            length = group.layout.length + columns - request.width
            query, key, value = (group.take(x)[:, :, group.padding :] for x in tensors)
            layout = PromptLayout(length, group.layout.documents)
            rotations = self._rotations(layout, query)
            if rule.softcap is None and rule.window is None:
                read = attend_circle(query, key, value, layout, rotations, scale=rule.scale)
                outputs.append(with_sinks(read, sinks).out)
            else:
                outputs.append(
                    attend_by_document(query, key, value, layout, rotations, rule, sinks=sinks)
                )
        return join_rows(groups, outputs).transpose(1, 2), None

    def _by_triton(self, call: AttentionCall, rule: ScoreRule) -> Tensor:
        """Output `[b, n, h, dv]` of all prompts of the batch."""
        self._layer.request.kernels_used = "triton"
        columns = self.prompt_columns(call.query.device)
        angles = self._layer.angles(columns.longest + 1)
        read = attend_triton(call.query, call.key, call.value, columns, angles, rule)
        return with_sinks(read, call.options.get("s_aux")).out.transpose(1, 2)

    def _rotations(self, layout: PromptLayout, query: Tensor) -> CircleRotations | None:
        """Tables that move queries on, made once per request; None without rotary embedding."""
        rotary, style = self._layer.rotary, self._traits.rotary
        if rotary is None or style is None:
            return None

        def make() -> CircleRotations:
            moves = torch.tensor(CircleRotations.moves(layout), device="cpu")
            cos, sin = rotary.rotations(moves, style)
            return CircleRotations.of(cos, sin, layout, style, query)

        key = ("circle", layout, id(rotary.module), rotary.extra, style, query.device, query.dtype)
        return self._layer.request.shared(key, make)
