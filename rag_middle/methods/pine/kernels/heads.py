"""The attention of PINE (arXiv:2407.01100, section 3) for a few heads at a time.

Scores of a block of heads and query tokens are computed into one reused buffer, turned into
weights and spent on values before the next block: what is alive at once is bounded.
"""

from __future__ import annotations

from dataclasses import replace

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


class HeadBlock:
    """`g` key/value heads with their `h` query heads; the last `m` of `N` tokens are queries.

    Args:
        q: `[h, m, d]` un-rotated queries.
        k: `[g, N, d]` keys at base positions.
        v: `[g, N, dv]`.
        document_keys: `[g, T, d]` un-rotated.
        out: `[h, m, dv]`, filled part by part.
        lse: `[h, m]`, like `out`; None where not asked for.
        tables: of the prompt.
        rule: from dot products to scores.
        scratch: room for scores.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        document_keys: Tensor,
        out: Tensor,
        lse: Tensor | None,
        tables: PineTables,
        rule: ScoreRule,
        scratch: Scratch,
    ) -> None:
        # float32 throughout: ranking needs it, and half-precision scores would have to be widened
        # for the softmax anyhow.
        self.q = q.float() * rule.scale
        self.k = k.float()
        self.v = v.float()
        self.document_keys = document_keys.float()
        self.out, self.lse = out, lse
        self.tables, self.rule, self.scratch = tables, rule, scratch
        self.unscaled = replace(rule, scale=1.0)  # the queries carry the scale
        self.first_query = k.shape[1] - q.shape[1]
        self.alive = scores_at_once(q.device)
        self.first, self.last = tables.layout.prefix_tokens, tables.layout.suffix_start
        # Where documents stand matters to rotations and windows only.
        self.ranks = self.first < self.last and (tables.rotates or rule.window is not None)
        self.positions = tables.positions(k.shape[1])  # [N]
        self.later = torch.ones(0, 0, dtype=torch.bool, device=q.device)

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
        """Tokens behind the documents: everything before, documents ranked token by token."""
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
        lengths = self.tables.layout.document_lengths
        importance = document_importance(
            self.q[None, :, self.first : self.last],
            self.document_keys[None],
            lengths,
            self.unscaled,
            self.tables.means,
            self.scratch,
        )
        return document_shifts(importance[0], self.tables.lengths, self.tables.ranking)

    def _token_shifts(self, q: Tensor) -> Tensor:
        """`[h, c, D]`: the same for each of `[h, c, d]` un-rotated queries."""
        lengths = self.tables.layout.document_lengths
        importance = token_importance(
            q[None], self.document_keys[None], lengths, self.unscaled, self.tables.means
        )
        return document_shifts(importance[0], self.tables.lengths, self.tables.ranking)

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
