"""Documents in a circle, in a transformers layer: rows, paddings and caches around the attention.

The model rotates queries and keys as it always does. Only the rows of documents attend to other
keys than the model's own, in the prompt's forward pass; what is cached, and every generated token,
is the unmodified model's on the prompt as arranged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.attention import (
    ASPECTS,
    AttentionCall,
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    RowGroup,
    backend_name,
    base_attention,
    join_rows,
    pair_tables,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods.parallel_context.attention import placed_columns
from rag_middle.methods.rotor.kernels.circle import (
    CircleTurns,
    attend_circle,
    circle_distances,
    circle_keys,
)
from rag_middle.methods.rotor.kernels.launch import CHECK, attend_triton
from rag_middle.ops.flash import with_sinks
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.prompt_kernels import PromptColumns
from rag_middle.ops.rope import WideTables, rotate, wide_tables
from rag_middle.ops.scores import ScoreRule


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCircle(LayerChange):
    """Every query sees all documents, in the order of the prompt going round in a circle.

    Attributes:
        unchanged: per prompt, whether it is read as the model does; empty where none is.
    """

    claims = frozenset(ASPECTS)
    has_kernels = True

    unchanged: tuple[bool, ...] = ()

    def start(self, layer: Layer) -> LayerHandler:
        return _CircleAttention(layer, self.unchanged)


class _Turns(NamedTuple):
    """Tables of the rotations by a number of positions back: cosine and sine `[k, r]`."""

    cos: Tensor
    sin: Tensor


class _CircleAttention(LayerHandler):
    """Attention of one layer with documents in a circle, during one request."""

    def __init__(self, layer: Layer, unchanged: tuple[bool, ...]) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._unchanged = unchanged

    def query_positions(self, rows: int, columns: int) -> Tensor | None:
        """Each document stands last of all where its tokens are read."""
        request, start = self._layer.request, self._layer.start
        request.see(rows, columns, start)
        if start >= request.width:  # generated tokens stand where the model puts them
            return None
        return placed_columns("last", self._groups(), start, columns)

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]`: queries and keys come rotated by the model."""
        call = context.call
        query, key, value = call.query, call.key, call.value
        context.store()
        if context.start > 0:
            return base_attention(call)
        request = self._layer.request
        style = None if self._layer.rotary is None else self._traits.rotary
        rule = self._layer.score_rule(context.stop)
        if uses_triton(request.kernels, query, value, CHECK, style=style, rule=rule):
            return self._by_triton(call, rule), None
        groups = self._groups()
        outputs = []
        for group in groups:
            # Without a cache, generated tokens come again with the prompt: part of the suffix.
            length = group.layout.length + query.shape[2] - request.width
            part = AttentionCall(
                call.module,
                group.take(query)[:, :, group.padding :],
                group.take(key)[:, :, group.padding :],
                group.take(value)[:, :, group.padding :],
                None,
                call.options,
            )
            layout = PromptLayout(length, group.layout.documents)
            outputs.append(self._prompt(part, layout).transpose(1, 2))
        return join_rows(groups, outputs).transpose(1, 2), None

    def _by_triton(self, call: AttentionCall, rule: ScoreRule) -> Tensor:
        """Output `[b, n, h, dv]` of all prompts of the batch."""
        request, device = self._layer.request, call.query.device
        request.kernels_used = "triton"

        def make() -> PromptColumns:
            groups = {row: group for group in self._groups() for row in group.rows}
            rows = [groups[row] for row in sorted(groups)]
            return PromptColumns(
                [row.layout for row in rows], [row.padding for row in rows], device
            )

        columns = request.shared(("circle of prompts", device), make)
        angles = self._layer.angles(columns.longest + 1)
        read = attend_triton(call.query, call.key, call.value, columns, angles, rule)
        return with_sinks(read, call.options.get("s_aux")).out.transpose(1, 2)

    def _groups(self) -> tuple[RowGroup, ...]:
        """The request's rows by layout, those read as they are without documents."""
        request = self._layer.request
        if not any(self._unchanged):
            return request.groups
        rows = sum(len(group.rows) for group in request.groups)
        repeats = rows // len(request.layouts)
        split = []
        for group in request.groups:
            plain = tuple(row for row in group.rows if self._unchanged[row // repeats])
            circled = tuple(row for row in group.rows if row not in plain)
            without = PromptLayout(group.layout.length)
            split += [RowGroup(plain, group.padding, without)] if plain else []
            split += [RowGroup(circled, group.padding, group.layout)] if circled else []
        return tuple(split)

    def _prompt(self, call: AttentionCall, layout: PromptLayout) -> Tensor:
        """Output `[rows, n, h, dv]` of a whole prompt without padding."""
        if self._traits.softcap is None and self._traits.sliding_window is None:
            read = attend_circle(
                call.query,
                call.key,
                call.value,
                layout,
                self._query_turns(layout, call.query),
                scale=self._traits.score_scale,
            )
            return with_sinks(read, call.options.get("s_aux")).out.transpose(1, 2)
        first, last = layout.prefix_tokens, layout.suffix_start
        device = call.query.device
        parts = []
        if first:
            parts.append(
                self._rows(call, 0, first, call.key, call.value, _causal(0, first, device))
            )
        if last > first:
            parts.extend(self._documents(call, layout))
        if layout.length > last:
            distances = _causal(last, layout.length, device)
            parts.append(self._rows(call, last, layout.length, call.key, call.value, distances))
        return torch.cat(parts, dim=1)

    def _documents(self, call: AttentionCall, layout: PromptLayout) -> list[Tensor]:
        first, last, total = layout.prefix_tokens, layout.suffix_start, layout.document_tokens
        keys, values = call.key[:, :, first:last], call.value[:, :, :last]
        prefix = call.key[:, :, :first]
        turns = self._turns(layout)
        wrapped = self._back(keys, turns, 0)
        outputs = []
        for index, (start, end) in enumerate(layout.documents):
            if start == end:
                continue
            seen = circle_keys(self._back(prefix, turns, 1 + index), keys, wrapped, end - first)
            distances = circle_distances(
                first, total, start - first, end - first, call.query.device
            )
            outputs.append(self._rows(call, start, end, seen, values, distances))
        return outputs

    def _rows(
        self,
        call: AttentionCall,
        start: int,
        end: int,
        keys: Tensor,
        values: Tensor,
        distances: Tensor,
    ) -> Tensor:
        """Output `[rows, end - start, h, dv]` of queries that see keys at these distances."""
        visible = distances >= 0
        window = self._traits.sliding_window
        if window is not None:
            visible = visible & (distances < window)
        query = call.query[:, :, start:end]
        count = visible.shape[1]
        rows = AttentionCall(
            call.module,
            query,
            keys[:, :, :count],
            values[:, :, :count],
            _mask(call, visible, query.dtype),
            call.options,
        )
        # Backends without masks of any shape leave these rows to one that takes them.
        named = backend_name(call.module)
        masks = named if named in ("sdpa", "eager") else "eager"
        return base_attention(rows, backend=masks)[0]

    def _turns(self, layout: PromptLayout) -> _Turns | None:
        """Rotations back by ``T``, then by what each document puts before the prefix."""
        style, rotary = self._traits.rotary, self._layer.rotary
        if rotary is None or style is None:
            return None

        def make() -> _Turns:
            back = [layout.document_tokens]
            back += [layout.suffix_start - end for _, end in layout.documents]
            positions = torch.tensor([[0, *back]], device=rotary.x.device)
            cos, sin = rotary.at(positions)
            cos, sin = pair_tables(cos, sin, self._traits.table_format)
            cos, sin = cos[0].float(), sin[0].float()
            # Yarn-like variants multiply a factor into the tables, which keys bear already.
            factor = cos[:1]
            return _Turns((cos / factor)[1:], -(sin / factor)[1:])

        key = ("circle", layout, id(rotary.module), rotary.extra, self._traits.table_format)
        return self._layer.request.shared(key, make)

    def _query_turns(self, layout: PromptLayout, query: Tensor) -> CircleTurns | None:
        """Tables that move queries on, made once per request."""
        rotary, style = self._layer.rotary, self._traits.rotary
        turns = self._turns(layout)
        if turns is None or rotary is None or style is None:
            return None

        def make() -> CircleTurns:
            lengths = torch.tensor(layout.document_lengths, dtype=torch.long, device="cpu")
            document = (
                torch.arange(len(lengths), device="cpu")
                .repeat_interleave(lengths)
                .to(turns.cos.device)
            )
            cos, sin = wide_tables(turns.cos, -turns.sin, style)
            by_row = (
                WideTables(cos[:1], sin[:1]),
                WideTables(cos[1:][document], sin[1:][document]),
            )
            wrapped, prefix = (
                WideTables(*(table.to(query.device, query.dtype) for table in tables))
                for tables in by_row
            )
            return CircleTurns(wrapped, prefix, style)

        device = (query.device, query.dtype)
        key = ("circle of queries", layout, id(rotary.module), rotary.extra, style, device)
        return self._layer.request.shared(key, make)

    def _back(self, keys: Tensor, turns: _Turns | None, which: int) -> Tensor:
        """Keys moved back by one of the turns."""
        style = self._traits.rotary
        if turns is None or style is None or not keys.shape[2]:
            return keys
        cos, sin = (table[which : which + 1].to(keys.device) for table in turns)
        return rotate(keys, cos, sin, style)


def _causal(start: int, end: int, device: torch.device) -> Tensor:
    """Distances `[end - start, end]` of a prompt read from left to right."""
    tokens = torch.arange(end, device=device)
    return tokens[start:, None] - tokens


def _mask(call: AttentionCall, visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask `[1, 1, m, n]` in the form that the backend takes."""
    if backend_name(call.module) == "sdpa":
        return visible[None, None]
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]
