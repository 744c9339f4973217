"""Documents read apart, or placed otherwise than in the prompt, in a transformers layer.

`DocumentHandler` reads them apart; `DocumentsLast`, the base of PINE and RoToR, does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerHandler,
    RowGroup,
    base_attention,
    join_rows,
    on_device,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods.document_blocks import DocumentAttention
from rag_middle.methods.document_blocks.kernels import (
    NEUTRAL,
    Placement,
    Sharpening,
    attend_documents,
    attend_later,
    document_bounds,
    token_positions,
)
from rag_middle.ops.flash import with_sinks
from rag_middle.ops.prompt_kernels import PromptColumns
from rag_middle.ops.rope import WideTables, rotate_wide, wide_tables
from rag_middle.ops.spans import Span, SpanTables, attend_spans, reads_spans


def placed_columns(
    placement: Placement, groups: Sequence[RowGroup], start: int, columns: int
) -> Tensor:
    """Where a placement puts columns `start` to `start + columns` of every row, `[b, columns]`."""
    tokens = torch.arange(start, start + columns, device="cpu")
    of_row: dict[int, Tensor] = {}
    for group in groups:
        placed = token_positions(group.layout, placement, (tokens - group.padding).clamp(min=0))
        of_row |= dict.fromkeys(group.rows, placed)
    return torch.stack([of_row[row] for row in sorted(of_row)])


class DocumentsLast(LayerHandler):
    """Attention in which each document stands last of all where its own tokens are read."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._traits = layer.traits

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Rows by layout."""
        return self._layer.request.groups

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        request, start = self._layer.request, self._layer.start
        request.record_shape(rows, columns, start)
        if start >= request.width:  # generated tokens stand where the model puts them
            return None
        return placed_columns("last", self.groups, start, columns)

    def prompt_columns(self, device: torch.device) -> PromptColumns:
        """Of all prompts of the batch, for Triton kernels; made once per request."""

        def make() -> PromptColumns:
            of_row = {row: group for group in self.groups for row in group.rows}
            groups = [of_row[row] for row in sorted(of_row)]
            layouts = [group.layout for group in groups]
            return PromptColumns(layouts, [group.padding for group in groups], device)

        return self._layer.request.shared(("prompt columns", device), make)


class DocumentHandler(LayerHandler):
    """Attention of one layer whose documents do not attend to each other, during one request.

    The cache holds keys rotated at the plan's positions, so that generated tokens attend as in the
    unmodified model, on its own backend, unless what they read from documents is sharpened.
    """

    def __init__(self, layer: Layer, reading: DocumentAttention) -> None:
        self._layer = layer
        self._reading = reading

    def before(self, arguments: dict[str, Any]) -> None:
        """Rotary tables where documents stand elsewhere than the model puts them."""
        rotary, placement = self._layer.rotary, self._reading.placement
        if rotary is None or placement == "kept":
            return
        device = arguments["hidden_states"].device
        rows, columns = arguments["hidden_states"].shape[:2]
        tables = rotary.named(placement, lambda: self._placed(rows, columns, device))
        arguments["position_embeddings"] = on_device(tables, device)

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        """Documents stand elsewhere than the model puts them, and so do their queries."""
        rotary = self._layer.rotary
        if rotary is None or self._reading.placement == "kept":
            return None
        return self._placed(rows, columns, rotary.x.device)

    def _placed(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """Where the plan puts the columns of the call under way, `[b, columns]`."""
        rotary, request, start = self._layer.rotary, self._layer.request, self._layer.start
        assert rotary is not None
        request.record_shape(rows, columns, start)
        if start < request.width:
            placed = self._of_rows(start, columns)
            if not self._reading.from_model:
                return placed
            own = rotary.position_ids
            # Of several axes, `[3, b, n]`, any: they are the same, or tables are refused.
            of_row = (own if own.ndim == 2 else own[0]).expand(rows, -1)
            first = of_row.gather(1, request.paddings(of_row.device)[:, None])
            return placed.to(of_row.device) + first
        # Generated tokens follow one another: what they are apart is sent to the device once.
        apart = request.shared(
            ("generated positions", self._reading.placement, device),
            lambda: self._of_rows(request.width, 1).to(device),
        )
        return torch.arange(columns, device=device) + (apart + (start - request.width))

    def _of_rows(self, start: int, columns: int) -> Tensor:
        groups = self._layer.request.groups
        return placed_columns(self._reading.placement, groups, start, columns)

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Queries and keys come rotated where the plan puts their tokens."""
        if context.start == 0:
            return self._prefill(context).transpose(1, 2), None
        if self._reading.sharpens or self._layer.score_rule(context.stop).window is not None:
            return self._decode(context).transpose(1, 2), None
        context.store()
        if not self._reading.one_of_many:
            return base_attention(context.call)
        bias = self._bias(context.call.query, context.stop)
        return context.attention.attend_biased(context.call, bias, context.stop), None

    def _prefill(self, context: AttentionContext) -> Tensor:
        call, request, layer = context.call, self._layer.request, self._layer
        n, device = call.query.shape[2], call.query.device
        sinks: Tensor | None = call.options.get("s_aux")
        outputs, keys = [], []
        for group in request.groups:
            layout = group.layout
            query, key, value = (
                group.take(x)[:, :, group.padding :] for x in (call.query, call.key, call.value)
            )
            rule, last = layer.score_rule(n), layout.suffix_start
            bounds = request.shared(
                ("document bounds", layout, device), partial(document_bounds, layout, device)
            )
            # Without a cache, generated tokens come again with the prompt.
            positions = self._positions(group, n)
            read = attend_documents(
                query, key, value, layout, rule, positions, sinks=sinks, bounds=bounds
            )
            if self._reading.moves:
                key = moved_keys(layer, key, layout, self._reading.placement)
                positions = self._positions(group, n, moved=True)
            later = attend_later(
                query[:, :, last:],
                key,
                value,
                layout,
                rule,
                positions,
                self._sharpening(layout),
                sinks=sinks,
            )
            outputs.append(torch.cat((read, later), dim=2))
            keys.append(key)
        context.store_prompt(join_rows(request.groups, keys) if self._reading.moves else call.key)
        return join_rows(request.groups, outputs)

    def _bias(self, query: Tensor, stop: int) -> Tensor:
        """Logarithms of the weights of documents on their columns, `[b, 1, 1, columns]`."""
        request, reach = self._layer.request, self._layer.table_reach(stop)

        def make() -> Tensor:
            shape = (query.shape[0], 1, 1, reach)
            bias = torch.zeros(shape, dtype=torch.float32, device="cpu")
            for row, (padding, layout) in enumerate(request.row_layouts()):
                documents = slice(padding + layout.prefix_tokens, padding + layout.suffix_start)
                bias[row, ..., :padding] = -torch.inf
                bias[row, ..., documents] = log(self._sharpening(layout).weight)
            return bias.to(query)

        # With room for generated tokens: few of them make it anew.
        key = ("document weights", self._reading, query.device, query.dtype, reach)
        return request.shared(key, make)

    def _decode(self, context: AttentionContext) -> Tensor:
        request, call, stop = self._layer.request, context.call, context.stop
        rule = self._layer.score_rule(stop)
        keys, values = context.store_generated(call.key)
        sinks: Tensor | None = call.options.get("s_aux")
        unknown = {"soft-cap": rule.softcap is not None, "sliding window": rule.window is not None}
        if self._reading.sharpens and reads_spans(
            request.kernels, call.query, keys, values, unknown
        ):
            request.kernels_used = "triton"
            tables = self._spans(call.query.device, rule.scale)
            return with_sinks(attend_spans(call.query, keys, values, tables), sinks).out
        outputs = []
        for group in request.groups:
            positions = torch.empty(0, device="cpu")
            if rule.window is not None:  # else nobody asks where tokens stand
                positions = self._positions(group, stop, moved=True)
            query = group.take(call.query)
            key, value = (group.take(x)[:, :, group.padding :] for x in (keys, values))
            read = attend_later(
                query,
                key,
                value,
                group.layout,
                rule,
                positions,
                self._sharpening(group.layout),
                sinks=sinks,
            )
            outputs.append(read)
        return join_rows(request.groups, outputs, padded=False)

    def _spans(self, device: torch.device, scale: float) -> SpanTables:
        """Prefix, documents and the rest of every row, for the Triton kernels."""
        request = self._layer.request

        def spans_of(padding: int, layout: PromptLayout) -> list[Span]:
            first, last = padding + layout.prefix_tokens, padding + layout.suffix_start
            sharp = self._sharpening(layout)
            documents = Span(
                first,
                last,
                scale / sharp.temperature,
                exponent=sharp.scale * sharp.temperature,
                log_weight=log(sharp.weight),
            )
            return [Span(padding, first, scale), documents, Span(last, -1, scale)]

        return request.shared(
            ("spans", self._reading, device, scale),
            lambda: SpanTables.of([spans_of(*row) for row in request.row_layouts()], device),
        )

    def _positions(self, group: RowGroup, stop: int, *, moved: bool = False) -> Tensor:
        """Positions of a prompt's tokens up to column `stop`, on the CPU."""
        tokens = torch.arange(stop - group.padding, device="cpu")
        return token_positions(group.layout, self._reading.placement, tokens, moved=moved)

    def _sharpening(self, layout: PromptLayout) -> Sharpening:
        reading = self._reading
        if not reading.sharpens and not reading.one_of_many:
            return NEUTRAL
        count = sum(length > 0 for length in layout.document_lengths)
        return Sharpening(
            temperature=reading.temperature,
            scale=reading.scale,
            weight=1 / max(1, count) if reading.one_of_many else 1.0,
        )


def moved_keys(layer: Layer, key: Tensor, layout: PromptLayout, placement: Placement) -> Tensor:
    """Keys of documents that were read from the prefix on, rotated on to where later tokens look.

    Args:
        layer: that they belong to, in a forward pass.
        key: `[r, g, n, d]`, of whole prompts without padding, or of their beginnings up to the
            last document.
        layout: of the prompts.
        placement: see `token_positions`.

    Returns:
        A copy `[r, g, n, d]`; `key` itself in a layer without rotary embedding, and without
        documents: some rotary modules take no empty tensors.
    """
    rotary, style = layer.rotary, layer.traits.rotary
    if rotary is None or style is None or not layout.document_tokens:
        return key
    span = slice(layout.prefix_tokens, layout.suffix_start)

    def make() -> WideTables:
        documents = torch.arange(span.start, span.stop, device="cpu")
        read = token_positions(layout, placement, documents)
        moves = token_positions(layout, placement, documents, moved=True) - read
        return wide_tables(*rotary.rotations(moves, style), style)

    name: Hashable = (placement, layout, id(rotary.module), rotary.extra, key.device, style)
    tables = WideTables(*(x.to(key.device) for x in layer.request.shared(name, make)))
    moved = key.clone()
    moved[:, :, span] = rotate_wide(key[:, :, span], tables, style)
    return moved
