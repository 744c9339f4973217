"""Documents that do not attend to each other, in a transformers layer.

Rows, paddings and caches around the kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from rag_middle.attention import (
    ASPECTS,
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    Request,
    RowGroup,
    base_attention,
    join_rows,
    on_device,
    pair_tables,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods.parallel_context.kernels import (
    NEUTRAL,
    Placement,
    Sharpening,
    attend_documents,
    attend_later,
    document_bounds,
    document_shifts,
    token_positions,
)
from rag_middle.ops.flash import with_sinks
from rag_middle.ops.rope import WideTables, rotate_wide, wide_tables
from rag_middle.ops.spans import Span, SpanTables, attend_spans, reads_spans

#: Placements whose documents are moved after they were read.
_MOVED = ("to_end", "to_order")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBlocks(LayerChange):
    """Documents see the prefix and themselves; later tokens see everything before them.

    Attributes:
        placement: where documents stand: ``"kept"`` as in the prompt; ``"from_start"`` all
            beginning behind the prefix, later tokens continuing after the longest; ``"to_end"``
            likewise, but moved to end where the longest ends for the tokens that read them;
            ``"to_order"`` moved to their positions in the prompt instead, behind which later
            tokens keep theirs; ``"last"`` all ending where the documents end in the prompt.
        temperature: later tokens' scores on documents are divided by it.
        scale: exponent of the documents' mass in their softmax, on top of the temperature (APE).
        one_of_many: that mass is divided by the number of documents (structured prompting).
        from_model: prompts begin at the position that the model was given for their first token,
            not at 0: what is read so stands beside tokens that the model rotates.
    """

    claims = frozenset(ASPECTS)

    placement: Placement
    temperature: float = 1.0
    scale: float = 1.0
    one_of_many: bool = False
    from_model: bool = False

    @property
    def has_kernels(self) -> bool:
        return self.sharpens

    @property
    def sharpens(self) -> bool:
        """Whether later tokens read documents otherwise than by plain softmax or a weight."""
        return not self.temperature == self.scale == 1

    def start(self, layer: Layer) -> LayerHandler:
        return _BlockAttention(layer, self)


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


def _first_positions(request: Request, position_ids: Tensor) -> Tensor:
    """The position of every row's first token behind its padding, `[b, 1]`."""
    paddings = request.paddings(position_ids.device)[:, None]
    return position_ids.gather(1, paddings)


class _BlockAttention(LayerHandler):
    """Attention of one layer whose documents do not attend to each other, during one request.

    The cache holds keys rotated at the plan's positions, so that generated tokens attend as in the
    unmodified model, on its own backend, unless what they read from documents is sharpened.
    """

    def __init__(self, layer: Layer, plan: DocumentBlocks) -> None:
        self._layer = layer
        self._plan = plan

    def before(self, arguments: dict[str, Any]) -> None:
        """Rotary tables where documents stand elsewhere than the model puts them."""
        rotary, placement = self._layer.rotary, self._plan.placement
        if rotary is None or placement == "kept":
            return
        device = arguments["hidden_states"].device
        rows, columns = arguments["hidden_states"].shape[:2]
        tables = rotary.named(placement, lambda: self._placed(rows, columns, device))
        arguments["position_embeddings"] = on_device(tables, device)

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        """Documents stand elsewhere than the model puts them, and so do their queries."""
        rotary = self._layer.rotary
        if rotary is None or self._plan.placement == "kept":
            return None
        return self._placed(rows, columns, rotary.x.device)

    def _placed(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """Where the plan puts the columns of the call under way, `[b, columns]`."""
        rotary, placement = self._layer.rotary, self._plan.placement
        assert rotary is not None
        request, start = self._layer.request, self._layer.start
        request.see(rows, columns, start)
        if start < request.width:
            placed = placed_columns(placement, request.groups, start, columns)
            if not self._plan.from_model:
                return placed
            own = rotary.position_ids
            # Of several axes, `[3, b, n]`, any: they are the same, or tables are refused.
            of_row = (own if own.ndim == 2 else own[0]).expand(rows, -1)
            return placed.to(of_row.device) + _first_positions(request, of_row)
        # Generated tokens follow one another: what they are apart is sent to the device once.
        apart = request.shared(
            ("generated positions", placement, device),
            lambda: placed_columns(placement, request.groups, request.width, 1).to(device),
        )
        since = start - request.width
        return torch.arange(since, since + columns, device=device) + apart

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Queries and keys come rotated where the plan puts their tokens."""
        if context.start == 0:
            return self._prefill(context).transpose(1, 2), None
        windowed = self._layer.score_rule(context.stop).window is not None
        groups = self._layer.request.groups
        plain = all(self._sharpening(group.layout) == NEUTRAL for group in groups)
        if plain and not windowed:
            context.store()
            return base_attention(context.call)
        if not self._plan.sharpens and not windowed:
            context.store()
            bias = self._bias(context.call.query, context.stop)
            return context.attention.attend_biased(context.call, bias, context.stop), None
        return self._decode(context).transpose(1, 2), None

    def _prefill(self, context: AttentionContext) -> Tensor:
        call, request = context.call, self._layer.request
        n = call.query.shape[2]
        sinks: Tensor | None = call.options.get("s_aux")
        outputs, moved_keys = [], []
        for group in request.groups:
            layout = group.layout
            query, key, value = (
                group.take(x)[:, :, group.padding :] for x in (call.query, call.key, call.value)
            )
            rule, last = self._layer.score_rule(n), layout.suffix_start
            # Without a cache, generated tokens come again with the prompt.
            positions = self._positions(group, n)
            parts = [
                attend_documents(
                    query,
                    key,
                    value,
                    layout,
                    rule,
                    positions,
                    sinks=sinks,
                    bounds=self._bounds(layout, query.device),
                )
            ]
            if self._plan.placement in _MOVED:
                key, positions = self._moved(key, positions, layout)
            parts.append(
                attend_later(
                    query[:, :, last:],
                    key,
                    value,
                    layout,
                    rule,
                    positions[last:],
                    positions,
                    self._sharpening(layout),
                    sinks=sinks,
                )
            )
            outputs.append(torch.cat(parts, dim=2))
            moved_keys.append(key)
        keys = call.key
        if self._plan.placement in _MOVED:
            keys = join_rows(request.groups, moved_keys)
        context.store_prompt(keys)
        return join_rows(request.groups, outputs)

    def _bias(self, query: Tensor, stop: int) -> Tensor:
        """Logarithms of the weights of documents on their columns, `[b, 1, 1, columns]`."""
        request, reach = self._layer.request, self._layer.table_reach(stop)

        def of_prompt() -> Tensor:
            bias = torch.zeros(
                query.shape[0], 1, 1, request.width, dtype=torch.float32, device="cpu"
            )
            for row, (padding, layout) in enumerate(request.row_layouts()):
                documents = slice(padding + layout.prefix_tokens, padding + layout.suffix_start)
                bias[row, ..., :padding] = -torch.inf
                bias[row, ..., documents] = log(self._sharpening(layout).weight)
            return bias.to(query)

        key = ("document weights", self._plan, query.device, query.dtype)
        prompt = request.shared(key, of_prompt)
        # With room for generated tokens: few of them make it anew.
        room = (0, reach - request.width)
        return request.shared((*key, reach), lambda: torch.nn.functional.pad(prompt, room))

    def _decode(self, context: AttentionContext) -> Tensor:
        request, call, stop = self._layer.request, context.call, context.stop
        rule = self._layer.score_rule(stop)
        keys, values = context.store_generated(call.key)
        sinks: Tensor | None = call.options.get("s_aux")
        unknown = {"soft-cap": rule.softcap is not None, "sliding window": rule.window is not None}
        if self._plan.sharpens and reads_spans(request.kernels, call.query, keys, values, unknown):
            request.kernels_used = "triton"
            tables = self._spans(call.query.device, rule.scale)
            return with_sinks(attend_spans(call.query, keys, values, tables), sinks).out
        outputs = []
        for group in request.groups:
            # Without a window nobody asks where tokens stand.
            positions = (
                self._positions(group, stop)
                if rule.window is not None
                else torch.empty(0, device="cpu")
            )
            if rule.window is not None and self._plan.placement in _MOVED:
                positions = self._moved_positions(positions, group.layout)
            query = group.take(call.query)
            outputs.append(
                attend_later(
                    query,
                    group.take(keys)[:, :, group.padding :],
                    group.take(values)[:, :, group.padding :],
                    group.layout,
                    rule,
                    positions[-query.shape[2] :],
                    positions,
                    self._sharpening(group.layout),
                    sinks=sinks,
                )
            )
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
            ("spans", self._plan, device, scale),
            lambda: SpanTables.of([spans_of(*row) for row in request.row_layouts()], device),
        )

    def _positions(self, group: RowGroup, stop: int) -> Tensor:
        """Positions of a prompt's tokens up to column `stop`, on the CPU."""
        tokens = torch.arange(stop - group.padding, device="cpu")
        return token_positions(group.layout, self._plan.placement, tokens)

    def _bounds(self, layout: PromptLayout, device: torch.device) -> Tensor:
        """`document_bounds`, sent to a device once."""
        return self._layer.request.shared(
            ("document bounds", layout, device), lambda: document_bounds(layout).to(device)
        )

    def _sharpening(self, layout: PromptLayout) -> Sharpening:
        count = sum(length > 0 for length in layout.document_lengths)
        return Sharpening(
            temperature=self._plan.temperature,
            scale=self._plan.scale,
            weight=1 / max(1, count) if self._plan.one_of_many else 1.0,
        )

    def _moved(self, key: Tensor, positions: Tensor, layout: PromptLayout) -> tuple[Tensor, Tensor]:
        """Keys and positions of documents where the tokens that read them find them."""
        if layout.suffix_start == layout.prefix_tokens:  # some rotary modules take no empty tensors
            return key, positions
        key = moved_keys(self._layer, key, layout, self._plan.placement)
        return key, self._moved_positions(positions, layout)

    def _moved_positions(self, positions: Tensor, layout: PromptLayout) -> Tensor:
        moved = positions.clone()
        span = slice(layout.prefix_tokens, layout.suffix_start)
        moved[span] += document_shifts(layout, self._plan.placement)
        return moved


def moved_keys(layer: Layer, key: Tensor, layout: PromptLayout, placement: Placement) -> Tensor:
    """Keys of documents that were read from the prefix on, rotated on to other positions.

    Args:
        layer: that they belong to, in a forward pass.
        key: `[r, g, n, d]`, of whole prompts without padding, or of their beginnings up to the
            last document.
        layout: of the prompts.
        placement: see `document_shifts`.

    Returns:
        A copy `[r, g, n, d]`; `key` itself in a layer without rotary embedding.
    """
    rotary, style = layer.rotary, layer.traits.rotary
    if rotary is None or style is None:
        return key

    def make() -> WideTables:
        shifts = document_shifts(layout, placement)[None]
        cos, sin = rotary.at(shifts.to(rotary.x.device))
        still, _ = rotary.at(torch.zeros_like(shifts[:, :1]).to(rotary.x.device))
        pairs = pair_tables(cos.float(), sin.float(), layer.traits.table_format)
        # Yarn-like variants multiply a factor into the table: keys have it already.
        factor, _ = pair_tables(still.float(), still.float(), layer.traits.table_format)
        return wide_tables(pairs[0][0] / factor[0], pairs[1][0] / factor[0], style)

    name: Hashable = (placement, layout, id(rotary.module), rotary.extra, key.device, style)
    tables = WideTables(*(x.to(key.device) for x in layer.request.shared(name, make)))
    span = slice(layout.prefix_tokens, layout.suffix_start)
    moved = key.clone()
    moved[:, :, span] = rotate_wide(key[:, :, span], tables, style)
    return moved
