"""PINE's Triton kernels as operators of PyTorch: a batch of prompts in a few launches.

`pine_prefill`, `pine_rotate` and `pine_decode` are custom operators with fakes, so fake tensors,
compilers and counters see them without Triton, which is imported at the first launch. Mathematics
and shapes are those of `attend.py`; the kernels are in `triton_rank.py` and `triton_attend.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rag_middle.ops.prompt_kernels import (
    PromptColumns,
    RotaryAngles,
    angle_arguments,
    attention_constants,
    empty_output,
    head_constants,
    rows_in_one_piece,
    rule_arguments,
    splits_for,
    splits_of_keys,
    tile_sizes,
)
from rag_middle.ops.scores import ScoreRule


def prefill_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: PromptColumns,
    angles: RotaryAngles | None,
    rule: ScoreRule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of whole prompts, whose layouts may differ.

    Args:
        q: `[b, h, n, d]` un-rotated queries.
        k: `[b, g, n, d]` un-rotated keys; query head `i` uses head `i // (h/g)`.
        v: `[b, g, n, dv]`.
        columns: of the batch.
        angles: None for a layer without rotary embedding.
        rule: from dot products to scores.

    Returns:
        Output `[b, n, h, dv]`, zero in padding; `[b, h, n]` float32 log-sum-exp of the scores; and
        the keys to cache, `[b, g, n, d]` at base positions: `k` itself without rotary embedding.
    """
    tiles = columns.tiles(tile_sizes(max(q.shape[-1], v.shape[-1])).rows)
    out, lse, rotated = torch.ops.rag_middle.pine_prefill(
        q, k, v, columns.rows, tiles, *angle_arguments(angles), columns.first, columns.last,
        columns.padded, *rule_arguments(rule),
    )  # fmt: skip
    return out, lse, k if angles is None else rotated


def rotate_triton(
    q: Tensor, k: Tensor, columns: PromptColumns, angles: RotaryAngles | None, start: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys of generated tokens, from column `start` on, at their positions."""
    if angles is None:
        return q, k
    placed, rotated = torch.ops.rag_middle.pine_rotate(
        q, k, columns.rows, *angle_arguments(angles), start
    )
    return placed, rotated


def decode_triton(
    q: Tensor,
    placed: Tensor,
    keys: Tensor,
    values: Tensor,
    columns: PromptColumns,
    angles: RotaryAngles | None,
    rule: ScoreRule,
) -> tuple[Tensor, Tensor]:
    """Attention of generated tokens, the last `m` of `n` columns; each ranks the documents anew.

    Args:
        q: `[b, h, m, d]` un-rotated queries.
        placed: the same, from `rotate_triton`.
        keys: `[b, g, n, d]` as cached. What ranks documents is rotated back from them.
        values: `[b, g, n, dv]`.
        columns: of the batch.
        angles: None for a layer without rotary embedding.
        rule: from dot products to scores.

    Returns:
        Output `[b, m, h, dv]`, and `[b, h, m]` float32 log-sum-exp of the scores.
    """
    out, lse = torch.ops.rag_middle.pine_decode(
        q, placed, keys, values, columns.rows, *angle_arguments(angles), *rule_arguments(rule)
    )
    return out, lse


@torch.library.custom_op("rag_middle::pine_prefill", mutates_args=())
def _pine_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    tiles: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    pairs: int,
    interleaved: bool,
    first: int,
    last: int,
    padded: bool,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    from rag_middle.methods.pine.kernels import triton_attend

    q, k, v = map(rows_in_one_piece, (q, k, v))
    call = _Launch(q, k, v, rows, cos, sin, pairs, interleaved, scale, softcap, window)
    out, lse, rotated = _empty_prefill(q, k, v, cos is not None, padded)
    n, tokens = q.shape[2], q.shape[2] - last
    units = call.count + tokens
    with torch.cuda.device_of(q):
        placed, keys = q, k
        if cos is not None:
            placed, keys = torch.empty_like(q), rotated
            call.rotate(k, placed, rotated, 0)
        shifts = q.new_empty(0, dtype=torch.int32)
        if call.ranks and call.count and units:
            shifts = call.shifts(k, 0, n, n - first, units, 0, rotated=False)
        if tiles.shape[0]:
            triton_attend.attend_documents[(tiles.shape[0], call.heads)](
                placed, keys, v, call.cos, call.sin, rows, tiles, shifts, out, lse,
                *placed.stride()[:3], *keys.stride()[:3], *v.stride()[:3], *out.stride()[:3],
                *lse.stride()[:2], call.heads, call.count, units, scale, softcap, window,
                **call.attention, **tile_sizes(call.widest).arguments,
            )  # fmt: skip
        if tokens:
            call.later(placed, keys, shifts, out, lse, 0, n, tokens, units, call.count)
    return out, lse, rotated


@torch.library.custom_op("rag_middle::pine_rotate", mutates_args=())
def _pine_rotate(
    q: Tensor,
    k: Tensor,
    rows: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairs: int,
    interleaved: bool,
    start: int,
) -> tuple[Tensor, Tensor]:
    q, k = rows_in_one_piece(q), rows_in_one_piece(k)
    call = _Launch(q, k, k, rows, cos, sin, pairs, interleaved, 1.0, 0.0, 0)
    placed, rotated = q.new_empty(q.shape), k.new_empty(k.shape)
    with torch.cuda.device_of(q):
        call.rotate(k, placed, rotated, start)
    return placed, rotated


@torch.library.custom_op("rag_middle::pine_decode", mutates_args=())
def _pine_decode(
    q: Tensor,
    placed: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    pairs: int,
    interleaved: bool,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor]:
    q, placed, keys, values = map(rows_in_one_piece, (q, placed, keys, values))
    call = _Launch(q, keys, values, rows, cos, sin, pairs, interleaved, scale, softcap, window)
    out, lse = empty_output(q, values, False)
    tokens, stop = q.shape[2], keys.shape[2]
    start = stop - tokens
    with torch.cuda.device_of(q):
        shifts = q.new_empty(0, dtype=torch.int32)
        if call.ranks and call.count:
            rotated = cos is not None
            shifts = call.shifts(keys, start, stop, tokens, tokens, call.count, rotated=rotated)
        call.later(placed, keys, shifts, out, lse, start, stop, tokens, tokens, 0)
    return out, lse


class _Launch:
    """Arguments that the kernels of one call share."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        pairs: int,
        interleaved: bool,
        scale: float,
        softcap: float,
        window: int,
    ) -> None:
        self.q, self.v, self.rows = q, v, rows
        # A layer without rotary embedding has no tables: any pointer will do.
        self.cos, self.sin = (q, q) if cos is None or sin is None else (cos, sin)
        self.numbers = scale, softcap, window
        self.batch, self.heads, _, d = q.shape
        self.groups, self.count = k.shape[1], rows.shape[1] - 2
        self.widest = max(d, v.shape[-1])
        rotates = cos is not None
        #: Without positions the order of documents says nothing.
        self.ranks = rotates or window > 0
        self.head: dict[str, Any] = head_constants(d, rotates, pairs, interleaved)
        self.attention: dict[str, Any] = {
            **self.head,
            **attention_constants(q, k, v, rotates, softcap, window),
            "RANKS": self.ranks and self.count > 0,
        }

    def rotate(self, k: Tensor, placed: Tensor, rotated: Tensor, start: int) -> None:
        """Queries and keys of columns from `start` on to their base positions."""
        from rag_middle.methods.pine.kernels.triton_attend import rotate_both

        m, q, size = k.shape[2], self.q, 32
        rotate_both[(-(-m // size), self.heads + self.groups, self.batch)](
            q, k, placed, rotated, self.cos, self.sin, self.rows, *q.stride()[:3],
            *k.stride()[:3], *placed.stride()[:3], *rotated.stride()[:3],
            self.heads, start, start + m, self.count, **self.head, BN=size,
        )  # fmt: skip

    def shifts(
        self,
        keys: Tensor,
        start: int,
        stop: int,
        tokens: int,
        units: int,
        first_unit: int,
        *,
        rotated: bool,
    ) -> Tensor:
        """`[b, h, units, D]` int32: by how much documents move away from who ranks them."""
        from triton import next_power_of_2

        from rag_middle.methods.pine.kernels.triton_rank import document_lse, rank

        q, share = self.q, self.heads // self.groups
        lse = q.new_empty(self.batch, self.heads, tokens, self.count, dtype=torch.float32)
        tiles = tile_sizes(self.widest, later=rotated, rotates_back=rotated)
        row_tiles = -(-tokens * share // tiles.rows)
        chunks = min(self.count, splits_for(row_tiles * self.groups * self.batch))
        scale, softcap, _ = self.numbers
        document_lse[(row_tiles * chunks, self.groups, self.batch)](
            q, keys, self.cos, self.sin, self.rows, lse, *q.stride()[:3], *keys.stride()[:3],
            self.heads, start, stop, tokens, self.count, chunks, scale, softcap,
            UNROTATE=rotated, SOFTCAP=softcap > 0, SHARE=share,
            **self.head, **tiles.arguments,
        )  # fmt: skip
        shifts = q.new_empty(self.batch, self.heads, units, self.count, dtype=torch.int32)
        width = next_power_of_2(self.count)
        rank[(units, self.heads, self.batch)](
            lse, self.rows, shifts, self.heads, start, stop, tokens, self.count, units, first_unit,
            COUNT_PAD=width, ROWS=max(1, 1024 // width), num_warps=1,
        )  # fmt: skip
        return shifts

    def later(
        self,
        placed: Tensor,
        keys: Tensor,
        shifts: Tensor,
        out: Tensor,
        lse: Tensor,
        start: int,
        stop: int,
        tokens: int,
        units: int,
        first_unit: int,
    ) -> None:
        """Fill rows of at most `tokens` tokens after the documents, columns from `start` on."""
        from triton import next_power_of_2

        from rag_middle.methods.pine.kernels.triton_attend import attend_later, merge_parts

        q, v = self.q, self.v
        tiles = tile_sizes(self.widest, later=True)
        row_tiles = -(-tokens * (self.heads // self.groups) // tiles.rows)
        splits = splits_of_keys(row_tiles * self.groups * self.batch, stop)
        parts = q.new_empty(
            splits, self.batch, self.heads, tokens, v.shape[-1], dtype=torch.float32
        )
        sums = parts.new_empty(parts.shape[:-1])
        attend_later[(row_tiles * splits, self.groups, self.batch)](
            placed, keys, v, self.cos, self.sin, self.rows, shifts, parts, sums,
            *placed.stride()[:3], *keys.stride()[:3], *v.stride()[:3],
            self.heads, start, stop, tokens, self.count, units, first_unit, splits, *self.numbers,
            **self.attention, **tiles.arguments,
        )  # fmt: skip
        merge_parts[(tokens, self.heads, self.batch)](
            parts, sums, self.rows, out, lse, *out.stride()[:3], *lse.stride()[:2],
            start, stop, tokens, self.count, splits,
            DV=v.shape[-1], DV_PAD=self.attention["DV_PAD"], SPLITS_PAD=next_power_of_2(splits),
            num_warps=4,
        )  # fmt: skip


def _empty_prefill(
    q: Tensor, k: Tensor, v: Tensor, rotates: bool, padded: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return *empty_output(q, v, padded), k.new_empty(k.shape if rotates else (0,))


# Fakes take an operator's arguments in its order, and look at the first ones.


@_pine_prefill.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, _rows: Tensor, _tiles: Tensor, cos: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, _, _, padded, *_ = rest
    return _empty_prefill(q, k, v, cos is not None, padded)


@_pine_rotate.register_fake
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


@_pine_decode.register_fake
def _(q: Tensor, _placed: Tensor, _keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return empty_output(q, values, False)
