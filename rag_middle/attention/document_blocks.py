"""Documents that do not see each other, in a transformers layer.

Rows, paddings and caches around `rag_middle.ops.document_blocks`.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor
from transformers import StaticCache

from rag_middle.attention.plan import DocumentBlocks
from rag_middle.attention.request import Request, RowGroup, join_rows, restored_columns
from rag_middle.attention.rotary import RotaryCall, pair_tables
from rag_middle.attention.seam import AttentionCall, CacheTap, base_attention
from rag_middle.attention.traits import LayerTraits
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.layout import PromptLayout
from rag_middle.ops.document_blocks import (
    NEUTRAL,
    Sharpening,
    attend_documents,
    attend_later,
    document_shifts_to_end,
    token_positions,
)
from rag_middle.ops.importance import ScoreRule
from rag_middle.ops.rope import rotate

__all__ = ["BlockAttention", "position_ids"]


def position_ids(plan: DocumentBlocks, request: Request, start: int, columns: int) -> Tensor:
    """Where the plan puts columns `start` to `start + columns` of every row, `[b, columns]`."""
    tokens = torch.arange(start, start + columns)
    of_row: dict[int, Tensor] = {}
    for group in request.groups:
        placed = token_positions(
            group.layout, plan.placement, (tokens - group.padding).clamp(min=0)
        )
        of_row |= dict.fromkeys(group.rows, placed)
    return torch.stack([of_row[row] for row in sorted(of_row)])


class BlockAttention:
    """Attention of one layer whose documents do not see each other, during one request.

    The cache holds keys rotated at the plan's positions, so that generated tokens attend as in the
    unmodified model, on its own backend, unless what they read from documents is sharpened.
    """

    def __init__(self, traits: LayerTraits, plan: DocumentBlocks) -> None:
        self._traits = traits
        self._plan = plan
        #: The prompt's keys and values where the model's cache drops what leaves the window.
        self._prompt: tuple[Tensor, Tensor] | None = None

    @property
    def moves_tokens(self) -> bool:
        """Whether tokens stand elsewhere than the model puts them."""
        return self._plan.placement != "kept"

    def attend(
        self,
        call: AttentionCall,
        tap: CacheTap,
        rotary: RotaryCall | None,
        request: Request,
        start: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]` of the call's tokens, columns `start` to `start + n`.

        Args:
            call: queries and keys rotated at `position_ids`.
            tap: of the cache.
            rotary: of the forward pass; None in a layer without rotary embedding.
            request: of the call.
            start: columns before the call.
        """
        if start == 0:
            return self._prefill(call, tap, rotary, request).transpose(1, 2), None
        call.key, call.value = tap.store(call.key, call.value)
        stop = start + call.query.shape[2]
        windowed = self._rule(stop).window is not None
        plain = all(self._sharpening(group.layout) == NEUTRAL for group in request.groups)
        if plain and not windowed:
            return base_attention(call)
        return self._decode(call, request, stop).transpose(1, 2), None

    def _prefill(
        self, call: AttentionCall, tap: CacheTap, rotary: RotaryCall | None, request: Request
    ) -> Tensor:
        if self._traits.sliding_window is not None and isinstance(tap.cache, StaticCache):
            raise UnsupportedGenerationError(
                "Generated tokens need all documents in the cache, and a static cache of a "
                "sliding-window layer drops them. Use cache_implementation='dynamic'."
            )
        n = call.query.shape[2]
        sinks: Tensor | None = call.options.get("s_aux")
        outputs, moved_keys = [], []
        for group in request.groups:
            layout = group.layout
            query, key, value = (
                group.take(x)[:, :, group.padding :] for x in (call.query, call.key, call.value)
            )
            # Without a cache, generated tokens come again with the prompt.
            positions = self._positions(group, n)
            rule, last = self._rule(n), layout.suffix_start
            parts = [attend_documents(query, key, value, layout, rule, positions, sinks=sinks)]
            if self._plan.placement == "to_end":
                key, positions = self._moved(key, positions, layout, rotary, request)
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
        if self._plan.placement == "to_end":
            keys = join_rows(request.groups, moved_keys)
        tap.store(keys, call.value)
        if self._traits.sliding_window is not None and tap.cache is not None:
            self._prompt = (keys, call.value)
        return join_rows(request.groups, outputs)

    def _decode(self, call: AttentionCall, request: Request, stop: int) -> Tensor:
        keys, values = call.key, call.value
        if self._prompt is not None:
            keys = restored_columns(self._prompt[0], keys, stop)
            values = restored_columns(self._prompt[1], values, stop)
        outputs = []
        for group in request.groups:
            positions = self._positions(group, stop)
            if self._plan.placement == "to_end":
                positions = _moved_positions(positions, group.layout)
            query = group.take(call.query)
            outputs.append(
                attend_later(
                    query,
                    group.take(keys)[:, :, group.padding : stop],
                    group.take(values)[:, :, group.padding : stop],
                    group.layout,
                    self._rule(stop),
                    positions[-query.shape[2] :],
                    positions,
                    self._sharpening(group.layout),
                    sinks=call.options.get("s_aux"),
                )
            )
        return join_rows(request.groups, outputs, padded=False)

    def _positions(self, group: RowGroup, stop: int) -> Tensor:
        """Positions of a prompt's tokens up to column `stop`, on the CPU unless a window asks."""
        tokens = torch.arange(stop - group.padding)
        return token_positions(group.layout, self._plan.placement, tokens)

    def _rule(self, tokens: int) -> ScoreRule:
        window = self._traits.sliding_window
        return ScoreRule(
            scale=self._traits.score_scale,
            softcap=self._traits.softcap,
            window=window if window is not None and window < tokens else None,
        )

    def _sharpening(self, layout: PromptLayout) -> Sharpening:
        count = sum(length > 0 for length in layout.document_lengths)
        return Sharpening(
            temperature=self._plan.temperature,
            scale=self._plan.scale,
            weight=1 / max(1, count) if self._plan.one_of_many else 1.0,
        )

    def _moved(
        self,
        key: Tensor,
        positions: Tensor,
        layout: PromptLayout,
        rotary: RotaryCall | None,
        request: Request,
    ) -> tuple[Tensor, Tensor]:
        """Keys and positions once the documents end together."""
        if not layout.documents:
            return key, positions
        placed = _moved_positions(positions, layout)
        if rotary is None or self._traits.rotary is None:
            return key, placed
        style = self._traits.rotary

        def make() -> tuple[Tensor, Tensor]:
            shifts = document_shifts_to_end(layout)[None]
            cos, sin = rotary.at(shifts.to(rotary.x.device))
            still, _ = rotary.at(torch.zeros_like(shifts[:, :1]).to(rotary.x.device))
            pairs = pair_tables(cos.float(), sin.float(), self._traits.table_format)
            # Yarn-like variants multiply a factor into the table: keys have it already.
            factor, _ = pair_tables(still.float(), still.float(), self._traits.table_format)
            return pairs[0][0] / factor[0], pairs[1][0] / factor[0]

        name: Hashable = ("to_end", layout, id(rotary.module), rotary.extra, key.device, style)
        cos, sin = request.shared(name, make)
        span = slice(layout.prefix_tokens, layout.suffix_start)
        moved = key.clone()
        turned = rotate(key[:, :, span].float(), cos.to(key.device), sin.to(key.device), style)
        moved[:, :, span] = turned.to(key.dtype)
        return moved, placed


def _moved_positions(positions: Tensor, layout: PromptLayout) -> Tensor:
    moved = positions.clone()
    moved[layout.prefix_tokens : layout.suffix_start] += document_shifts_to_end(layout)
    return moved
