"""Self-Extend's attention in a transformers layer, around its kernel."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    ModelAttention,
    join_rows,
)
from rag_middle.methods.self_extend.kernels import TwoFold, attend, weights_of, weights_on
from rag_middle.ops.flash import Attended, with_sinks
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.rope import WideTables, rotate_wide
from rag_middle.ops.rotate_heads import HEADS_CHECK, rotate_heads
from rag_middle.ops.spans import Span, SpanTables, attend_spans, reads_spans

if TYPE_CHECKING:
    from rag_middle.methods.self_extend import SelfExtend


def attend_grouped(method: SelfExtend, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
    """Rotate a layer's queries and keys, which come un-rotated, twice, and attend with both.

    The cache holds every key twice, side by side along the head dimension: rotated at its own
    position and at its grouped one. So no key is ever rotated again, and whatever moves rows of a
    cache (beams) moves both.
    """
    call, stop = context.call, context.stop
    call.query, far_query, keys = _rotated(method, context)
    stored, values = context.cache.store(keys, call.value)
    # A static cache is longer than what it holds; one with a window drops the oldest columns.
    dropped = max(0, stop - stored.shape[2])
    call.key, call.value = stored[:, :, : stop - dropped], values[:, :, : stop - dropped]
    context.attention = _GroupedAttention(context, far_query, method.window, dropped)
    return context.proceed()


def _rotated(method: SelfExtend, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys as the layer's attention takes them.

    Returns:
        Queries `[b, h, n, d]` at exact positions, and at grouped ones; keys `[b, g, n, 2d]` at
        both, side by side.
    """
    call, layer, request = context.call, context.layer, context.layer.request
    traits, style, rotary = layer.traits, layer.traits.rotary, layer.rotary
    assert style is not None
    assert rotary is not None
    config: Any = layer.module.config
    shift = method.query_shift(config.model_type)

    def tokens(columns: range) -> Tensor:
        device = rotary.x.device
        every = torch.arange(columns.start, columns.stop, device=device)
        return (every - request.paddings(device)[:, None]).clamp(min=0)  # [b, columns]

    def positions(columns: range) -> Tensor:
        exact = tokens(columns)
        grouped = exact.div(method.group, rounding_mode="floor").float()
        return torch.cat((exact.float(), grouped, grouped + shift))

    device, query = call.query.device, call.query
    columns = range(context.start, context.stop)
    tables = rotary.wide_by_column(
        (method, request.rows),
        3,
        positions,
        columns,
        style,
        reach=layer.table_reach(columns.stop),
    )
    if method.log_scale_base is not None:
        growth = (tokens(columns) + 1).to(query.device).float().log()
        growth = growth / log(method.log_scale_base)
        # A rounded factor would be wrong in one direction for the whole query.
        query = (query * growth.clamp(min=1)[:, None, :, None]).to(query.dtype)
    if uses_triton(request.kernels, query, call.key, call.value, HEADS_CHECK, style=style):
        request.kernels_used = "triton"
        near = [0] * (traits.heads + traits.kv_heads)
        far = [2] * traits.heads + [1] * traits.kv_heads  # shifted queries, grouped keys
        choice = request.shared(
            ("rotations", traits.heads, traits.kv_heads, device),
            lambda: torch.tensor([[near, far]], device=device),
        )
        queries, keys = layer.normalised(*rotate_heads(query, call.key, tables, choice, style))
        return queries[..., 0, :], queries[..., 1, :], keys.flatten(3)
    cos, sin = (table[:, :, None].to(device) for table in tables)
    # Both at once: exact with grouped for keys, exact with shifted grouped for queries.
    near_k, far_k = rotate_wide(call.key, WideTables(cos[:2], sin[:2]), style)
    near_q, far_q = rotate_wide(query, WideTables(cos[::2], sin[::2]), style)
    near_q, near_k = layer.normalised(near_q, near_k)
    far_q, far_k = layer.normalised(far_q, far_k)
    return near_q, far_q, torch.cat((near_k, far_k), dim=-1)


class _GroupedAttention(ModelAttention):
    """One attention call with keys that are rotated twice."""

    def __init__(
        self, context: AttentionContext, far_query: Tensor, window: int, dropped: int
    ) -> None:
        super().__init__(context.layer.traits, context.layer.request)
        self._start = context.start
        self._rule = context.layer.score_rule(context.stop)
        self._far_query = far_query
        self._near = window
        self._dropped = dropped  # columns that have left the cache
        #: Of each group: queries, keys, and what was read.
        self._read: list[tuple[TwoFold, TwoFold, Attended]] = []

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        if self._start >= self._request.width and reads_spans(
            self._request.kernels,
            call.query,
            call.key,
            call.value,
            # Tables of a request would have to know how many columns have left.
            {"soft-cap": self._rule.softcap is not None, "dropped columns": self._dropped > 0},
        ):
            return self._by_triton(call), None
        return self._output(call), None

    def _by_triton(self, call: AttentionCall) -> Tensor:
        """Output `[b, 1, h, dv]` of a generated token."""
        request, device = self._request, call.query.device
        request.kernels_used = "triton"
        scale, window = self._rule.scale, self._rule.window
        # Spans end after the last key, -1, or this many keys before it.
        near = -1 - (self._near if window is None else min(self._near, window))
        oldest = 0 if window is None else -1 - window

        def spans_of(padding: int) -> list[Span]:
            far = Span(oldest, near, scale, least=padding, far=True)
            return [Span(near, -1, scale, least=padding), far]

        tables = request.shared(
            ("spans", near, oldest, scale, device),
            lambda: SpanTables.of(
                [spans_of(padding) for padding, _ in request.row_layouts()], device
            ),
        )
        read = attend_spans(call.query, call.key, call.value, tables, self._far_query)
        return with_sinks(read, call.options.get("s_aux")).out.transpose(1, 2)

    def last_token_weights(self, call: AttentionCall) -> Tensor:
        groups, last = self._request.groups, self._request.width - 1
        means = [
            weights_of(last - group.padding, q, k, read.lse, self._near, self._rule).mean(1)
            for group, (q, k, read) in zip(groups, self._of_groups(call), strict=True)
        ]
        whole = join_rows(groups, [mean[:, None, :, None] for mean in means])
        return whole[:, 0, : self._request.width, 0]

    def attend_and_weigh(self, call: AttentionCall, token: int = 0) -> tuple[Tensor, Tensor]:
        received = [
            weights_on(token, q, k, read.lse, self._near, self._rule)[..., None]
            for q, k, read in self._of_groups(call)
        ]
        return self._output(call), join_rows(self._request.groups, received)[..., 0]

    def _of_groups(self, call: AttentionCall) -> list[tuple[TwoFold, TwoFold, Attended]]:
        near, far = call.key.chunk(2, dim=-1)
        for group in self._request.groups if not self._read else ():
            # Of queries, too, padding goes first.
            rows = max(0, group.padding - self._start)
            columns = max(0, group.padding - self._dropped)
            q = TwoFold(*(group.take(x)[:, :, rows:] for x in (call.query, self._far_query)))
            k = TwoFold(*(group.take(x)[:, :, columns:] for x in (near, far)))
            value, sinks = group.take(call.value)[:, :, columns:], call.options.get("s_aux")
            read = attend(q, k, value, self._near, self._rule, sinks=sinks)
            self._read.append((q, k, read))
        return self._read

    def _output(self, call: AttentionCall) -> Tensor:
        outputs = [read.out for _, _, read in self._of_groups(call)]
        padded = self._start == 0
        return join_rows(self._request.groups, outputs, padded=padded).transpose(1, 2)
