"""Position-invariant attention (PINE, arXiv:2407.01100, section 3) as tensor operations.

Documents attend to each other in both directions, and every query sees them ordered by their
importance to it, the most important nearest. Nothing then depends on the order of the prompt.

Keys are rotated once at base positions (`PineTables`). What a ranking adds is a rotation by one
angle per document: of the keys, where a whole document is the query and shares its ranking; of the
query, where each suffix or generated token ranks for itself.

No tensor here grows faster than the prompt: scores of a block of heads and query tokens are
computed into one reused buffer, turned into weights and spent on values before the next block.
Gradients do not pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.methods.pine.kernels.importance import (
    document_importance,
    document_shifts,
    token_importance,
)
from rag_middle.methods.pine.kernels.tables import (
    MovingKeys,
    PineTables,
    base_rotate,
    base_rotate_pairs,
)
from rag_middle.ops.rope import rotate
from rag_middle.ops.scores import ScoreRule, Scratch, row_chunks, scores_at_once, softmax_


class PineState(NamedTuple):
    """What decoding needs besides the cache.

    Attributes:
        tables: of the prompt.
        document_keys: `[r, g, T, d]` as given, un-rotated. Rows of one prompt are equal, so beams
            may be reordered without touching it.
    """

    tables: PineTables
    document_keys: Tensor


class Prefilled(NamedTuple):
    """Result of `prefill`.

    Attributes:
        out: `[r, h, n, dv]` in the queries' dtype.
        lse: `[r, h, n]` float32 log-sum-exp of the scores, or None where not asked for.
        rotated_keys: `[r, g, n, d]` in the keys' dtype, at base positions: what to cache. The keys
            themselves, not a copy, in a layer without rotary embedding.
        state: what decoding needs.
    """

    out: Tensor
    lse: Tensor | None
    rotated_keys: Tensor
    state: PineState


@torch.no_grad()
def prefill(
    q: Tensor, k: Tensor, v: Tensor, tables: PineTables, rule: ScoreRule, *, need_lse: bool = False
) -> Prefilled:
    """Attention of a whole prompt.

    Args:
        q: `[r, h, n, d]` un-rotated queries; all rows share the layout, which is of `n` tokens.
        k: `[r, g, n, d]` un-rotated keys; query head `i` uses head `i // (h/g)`.
        v: `[r, g, n, dv]`.
        tables: of the prompt.
        rule: from dot products to scores.
        need_lse: also return the log-sum-exp.
    """
    layout = tables.layout
    first, last = layout.prefix_tokens, layout.suffix_start
    rotated_keys = base_rotate(k, tables)
    document_keys = k[:, :, first:last].clone(memory_format=torch.contiguous_format)
    state = PineState(tables, document_keys)
    call = _Call(q, rotated_keys, v.contiguous(), state, rule, need_lse)
    longest = max(layout.document_lengths, default=1)
    # A document moves all keys for itself, `d` numbers each. Where documents are shorter than that,
    # moved keys outnumber scores, and fill a CPU's cache first.
    for heads in call.head_blocks(0, last, at_once=longest + k.shape[-1]):
        heads.prefix()
        heads.documents()
    for heads in call.head_blocks(last, layout.length, at_once=layout.length - last):
        heads.later_tokens()
    return Prefilled(*call.result(), rotated_keys, state)


@torch.no_grad()
def decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    state: PineState,
    rule: ScoreRule,
    *,
    need_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of generated tokens; each one ranks the documents anew.

    Args:
        q: `[r, h, m, d]` un-rotated queries of the last `m` of `N` tokens, all after the documents.
        keys: `[r, g, N, d]` of prompt and generated text so far, the new tokens included, all
            passed through `base_rotate`.
        values: `[r, g, N, dv]`.
        state: from `prefill`.
        rule: from dot products to scores.
        need_lse: also return the log-sum-exp.

    Returns:
        `[r, h, m, dv]` in the queries' dtype, and `[r, h, m]` float32 log-sum-exp of the scores, or
        None where not asked for.
    """
    call = _Call(q, keys, values, state, rule, need_lse)
    for heads in call.head_blocks(0, q.shape[2], at_once=q.shape[2]):
        heads.later_tokens()
    return call.result()


class _Call:
    """Inputs and room for results of one call, with rows folded into heads."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, state: PineState, rule: ScoreRule, need_lse: bool
    ) -> None:
        self._shape = q.shape[:3]
        self.q, self.k, self.v = (x.flatten(0, 1) for x in (q, k, v))
        self.document_keys = state.document_keys.flatten(0, 1)
        self.out = self.q.new_empty(*self.q.shape[:2], v.shape[-1])
        self.lse = self.out.new_empty(self.q.shape[:2], dtype=torch.float32) if need_lse else None
        self.tables, self.rule = state.tables, rule

    def head_blocks(self, start: int, end: int, at_once: int) -> Iterator[_HeadBlock]:
        """As many heads at a time as leave room for the scores of `at_once` query tokens.

        Args:
            start: first query token.
            end: after the last query token; keys after it are left out.
            at_once: query tokens that are worth scoring together, and what else there is of numbers
                per key and query head meanwhile.
        """
        if start == end:
            return
        seen = self.k.shape[1] - self.q.shape[1] + end
        share = self.q.shape[0] // self.k.shape[0]
        step = max(1, scores_at_once(self.q.device) // max(1, share * at_once * seen))
        scratch = Scratch(self.q.device)
        for first in range(0, self.k.shape[0], step):
            keys, queries = slice(first, first + step), slice(first * share, (first + step) * share)
            yield _HeadBlock(self, (keys, slice(seen)), (queries, slice(start, end)), scratch)

    def result(self) -> tuple[Tensor, Tensor | None]:
        """`[r, h, m, dv]` and `[r, h, m]`."""
        out = self.out.view(*self._shape, -1)
        return out, None if self.lse is None else self.lse.view(self._shape)


class _HeadBlock:
    """`g` key/value heads with their `h` query heads; the last `m` of `N` tokens are queries.

    Args:
        call: that it is a part of.
        keys: heads and tokens of its keys.
        queries: heads and tokens of its queries.
        scratch: room for scores.
    """

    def __init__(
        self,
        call: _Call,
        keys: tuple[slice, slice],
        queries: tuple[slice, slice],
        scratch: Scratch,
    ) -> None:
        tables, rule = call.tables, call.rule
        # float32 throughout: ranking needs it, and half-precision scores would have to be widened
        # for the softmax anyhow.
        self.q = call.q[queries].float() * rule.scale  # [h, m, d], un-rotated, with the scale
        self.k, self.v = call.k[keys].float(), call.v[keys].float()  # [g, N, _], at base positions
        self.document_keys = call.document_keys[keys[0]].float()  # [g, T, d], un-rotated
        self.out = call.out[queries]  # [h, m, dv], filled part by part, as the log-sum-exp is
        self.lse = None if call.lse is None else call.lse[queries]
        self.tables, self.rule, self.scratch = tables, rule, scratch
        self.first_query = self.k.shape[1] - self.q.shape[1]
        self.alive = scores_at_once(self.q.device)
        self.first, self.last = tables.layout.prefix_tokens, tables.layout.suffix_start
        # Where documents stand matters to rotations and windows only.
        self.ranks = self.first < self.last and (tables.rotates or rule.window is not None)
        self.positions = tables.positions(self.k.shape[1])  # [N]
        self.later = torch.ones(0, 0, dtype=torch.bool, device=self.q.device)

    def prefix(self) -> None:
        """Tokens before the documents: plain causal attention."""
        q = base_rotate(self.q[:, : self.first], self.tables)
        for a, b in row_chunks(0, self.first, q.shape[0] * self.first, self.alive):
            scores = self._scores(q[:, a:b], self.k[:, :b])
            self._hide_later(scores[..., a:])
            self._hide_far(scores, a, self.positions[:b])
            self._weigh(scores, a)

    def documents(self) -> None:
        """Document tokens: the prefix, the other documents, and their own up to themselves."""
        tables, first, last = self.tables, self.first, self.last
        if first == last:
            return
        q, keys = self.q[:, first:last], self.k[:, :last]
        shifts = self._document_shifts() if self.ranks else None  # [h, D, D]
        moving = None
        if tables.rotates:
            moving = MovingKeys(keys, q.shape[0], tables)
            q, keys = base_rotate_pairs(q, tables, first), moving.keys
        for index, (start, end) in enumerate(tables.spans):
            if start == end:
                continue
            positions = self.positions[:last]
            if shifts is not None:
                if moving is not None:
                    moving.move_back(shifts[:, index])
                if self.rule.window is not None:
                    positions = self._moved_positions(shifts[:, None, index], last)
            for a, b in row_chunks(start, end, q.shape[0] * last, self.alive):
                scores = self._scores(q[:, a:b], keys)
                self._hide_later(scores[..., first + a : first + end])
                self._hide_far(scores, first + a, positions)
                self._weigh(scores, first + a)

    def later_tokens(self) -> None:
        """Tokens after the documents: everything before, documents ranked token by token."""
        total = self.k.shape[1]
        widest = max(total, len(self.tables.spans) * self.q.shape[-1])
        for a, b in row_chunks(self.first_query, total, self.q.shape[0] * widest, self.alive):
            q = self.q[:, a - self.first_query : b - self.first_query]
            placed = base_rotate(q, self.tables, a)
            positions = self.positions[:b]
            if self.ranks:
                shifts = self._token_shifts(q)  # [h, c, D]
                scores = self._scores_by_document(placed, shifts, b)
                if self.rule.window is not None:
                    positions = self._moved_positions(shifts, b)
            else:
                scores = self._scores(placed, self.k[:, :b])
            self._hide_later(scores[..., a:])
            self._hide_far(scores, a, positions)
            self._weigh(scores, a)

    def _document_shifts(self) -> Tensor:
        """`[h, D, D]`: how far a key document stands from its base, per query document."""
        tables = self.tables
        importance = document_importance(
            self.q[:, self.first : self.last],
            self.document_keys,
            tables.layout.document_lengths,
            tables.means,
            self.rule,
            self.scratch,
        )
        return document_shifts(importance, tables.lengths, tables.ranking)

    def _token_shifts(self, q: Tensor) -> Tensor:
        """`[h, c, D]`: the same for each of `[h, c, d]` un-rotated queries."""
        tables = self.tables
        importance = token_importance(q, self.document_keys, tables.means, self.rule)
        return document_shifts(importance, tables.lengths, tables.ranking)

    def _scores_by_document(self, q: Tensor, shifts: Tensor, end: int) -> Tensor:
        """Scores `[h, c, end]` of queries `[h, c, d]` that see documents moved back `[h, c, D]`.

        Moving a query on is the same as moving a document's keys back, and there are fewer.
        """
        tables, groups = self.tables, self.k.shape[0]
        moved = q
        if tables.rotates:
            by = shifts.movedim(-1, 0)
            moved = rotate(
                q.expand(*by.shape, -1), tables.shift_cos[by], tables.shift_sin[by], tables.style
            )
        folded = q.reshape(groups, -1, q.shape[-1])
        queries = moved.expand(len(tables.spans), *q.shape).reshape(-1, *folded.shape).unbind()
        sizes = (self.first, *tables.layout.document_lengths, end - self.last)
        keys = self.k[:, :end].transpose(1, 2).split(sizes, dim=2)
        parts = [torch.bmm(*pair) for pair in zip((folded, *queries, folded), keys, strict=True)]
        return self.rule.cap_(torch.cat(parts, dim=-1)).view(*q.shape[:2], end)

    def _moved_positions(self, shifts: Tensor, end: int) -> Tensor:
        """Positions `[h, c, end]` of the first keys, where documents are moved back `[h, c, D]`."""
        positions = self.positions[:end].repeat(*shifts.shape[:2], 1)
        positions[..., self.first : self.last] -= shifts[..., self.tables.document_of]
        return positions

    def _scores(self, q: Tensor, keys: Tensor) -> Tensor:
        """Scores `[h, c, n]` of `[h, c, d]` queries and `[g or h, n, d]` keys, in the scratch."""
        folded = q.reshape(keys.shape[0], -1, q.shape[-1])
        scores = self.rule.cap_(self.scratch.product(folded, keys))
        return scores.view(q.shape[0], q.shape[1], keys.shape[1])

    def _hide_later(self, scores: Tensor) -> None:
        """Hide keys after the query: row `i` of `[..., c, n]` keeps columns up to `i`."""
        rows, columns = scores.shape[-2:]
        if columns == 1:
            return
        if self.later.shape[0] < rows or self.later.shape[1] < columns:
            self.later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(self.later[:rows, :columns], -torch.inf)

    def _hide_far(self, scores: Tensor, first_query: int, key_positions: Tensor) -> None:
        """Apply the window to queries from token `first_query` on, keys at `[..., n]`."""
        if self.rule.window is not None:
            positions = self.positions[first_query : first_query + scores.shape[-2]]
            far = positions[:, None] - key_positions >= self.rule.window
            scores.masked_fill_(far, -torch.inf)

    def _weigh(self, scores: Tensor, first_query: int) -> None:
        """Spend scores `[h, c, n]` of tokens from `first_query` on the first `n` values."""
        h, c, n = scores.shape
        rows = slice(first_query - self.first_query, first_query - self.first_query + c)
        peak = None if self.lse is None else scores.amax(dim=-1)
        weights = softmax_(scores)
        if self.lse is not None and peak is not None:
            # The largest weight is exp(peak - lse), so no second sum of exponentials is needed.
            self.lse[:, rows] = peak - weights.amax(dim=-1).log()
        out = torch.bmm(weights.view(self.v.shape[0], -1, n), self.v[:, :n])
        self.out[:, rows] = out.view(h, c, -1)
