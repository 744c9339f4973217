"""Position-invariant attention (PINE, arXiv:2407.01100, section 3) as tensor operations.

Documents attend to each other in both directions, and every query sees them ordered by their
importance to it, the most important nearest. Nothing then depends on the order of the prompt.

Keys are rotated once at base positions (`pine_tables`). What a ranking adds is a rotation by one
angle per document: of the keys, where a whole document is the query and shares its ranking; of the
query, where each suffix or generated token ranks for itself.

No tensor here grows faster than the prompt: scores exist for a bounded number of query rows.
Gradients do not pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.errors import PromptError
from rag_middle.ops.importance import (
    ScoreRule,
    document_importance,
    document_shifts,
    row_chunks,
    token_importance,
)
from rag_middle.ops.pine_tables import PineTables, base_rotate
from rag_middle.ops.rope import rotate

__all__ = ["PineState", "PineTables", "Prefilled", "ScoreRule", "base_rotate", "decode", "prefill"]


class PineState(NamedTuple):
    """What decoding needs besides the cache.

    Attributes:
        tables: of the prompt.
        document_keys: `[r, g, T, d]` float32, un-rotated. Rows of one prompt are equal, so beams
            may be reordered without touching it.
    """

    tables: PineTables
    document_keys: Tensor


class Prefilled(NamedTuple):
    """Result of `prefill`.

    Attributes:
        out: `[r, h, n, dv]` in the queries' dtype.
        lse: `[r, h, n]` float32 log-sum-exp of the scores, or None where not asked for.
        rotated_keys: `[r, g, n, d]` in the keys' dtype, at base positions: what to cache.
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
        q: `[r, h, n, d]` un-rotated queries; all rows share the layout.
        k: `[r, g, n, d]` un-rotated keys; query head `i` uses head `i // (h/g)`.
        v: `[r, g, n, dv]`.
        tables: of the prompt.
        rule: from dot products to scores.
        need_lse: also return the log-sum-exp.

    Raises:
        PromptError: `n` is not the layout's length.
    """
    layout = tables.layout
    if q.shape[2] != layout.length:
        raise PromptError(
            f"PINE needs the prompt in one piece: {q.shape[2]} tokens were given, the layout has "
            f"{layout.length}. Turn chunked prefill off."
        )
    first, last = layout.prefix_tokens, layout.suffix_start
    state = PineState(tables, k[:, :, first:last].to(torch.float32, copy=True))
    rotated_keys = base_rotate(k, tables)
    run = _Run(q, rotated_keys, v, state, rule, need_lse)
    run.prefix()
    run.documents()
    run.later_tokens(last)
    return Prefilled(run.out.to(q.dtype), run.lse, rotated_keys, state)


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
    run = _Run(q, keys, values, state, rule, need_lse)
    run.later_tokens(run.first_query)
    return run.out.to(q.dtype), run.lse


class _Run:
    """One call: the last `m` of `N` tokens query all `N`.

    Attributes:
        q: `[r, h, m, d]` float32 un-rotated queries, scaled.
        k: `[r*g, N, d]` float32 keys at base positions.
        v: `[r*g, N, dv]` float32.
        positions: `[N]` base positions.
        out: `[r, h, m, dv]` float32, filled part by part.
        lse: `[r, h, m]` float32, or None.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, state: PineState, rule: ScoreRule, need_lse: bool
    ) -> None:
        self.r, self.h, m, _ = q.shape
        self.g, total = k.shape[1], k.shape[2]
        self.first_query = total - m
        # float32 throughout: ranking needs it, and half-precision scores would have to be widened
        # for the softmax anyhow.
        self.q = q.float() * rule.scale
        self.k = k.float().flatten(0, 1)
        self.v = v.float().flatten(0, 1)
        self.out = self.q.new_empty(self.r, self.h, m, v.shape[-1])
        self.lse = self.q.new_empty(self.r, self.h, m) if need_lse else None
        self.tables, self.document_keys = state.tables, state.document_keys
        self.rule = rule
        self.unscaled = replace(rule, scale=1.0)  # the queries carry the scale
        beyond = torch.arange(self.tables.layout.length, total, device=q.device)
        self.positions = torch.cat((self.tables.base_positions, beyond))
        # Where documents stand matters to rotations and windows only.
        self.ranks = bool(self.tables.spans) and (self.tables.rotates or rule.window is not None)

    def prefix(self) -> None:
        """Tokens before the documents: plain causal attention."""
        end = self.tables.layout.prefix_tokens
        q = base_rotate(self.q[:, :, :end], self.tables)
        for a, b in row_chunks(0, end, self.r * self.h * end):
            scores = self._scores(q[:, :, a:b], self.k[:, :b])
            _hide_later(scores[..., a:])
            self._hide_far(scores, self.positions[a:b, None], self.positions[:b])
            self._weigh(scores, a, b)

    def documents(self) -> None:
        """Document tokens: the prefix, the other documents, and their own up to themselves."""
        tables = self.tables
        first, last = tables.layout.prefix_tokens, tables.layout.suffix_start
        if first == last:
            return
        q = base_rotate(self.q[:, :, first:last], tables, first)
        # A query head ranks for itself, hence has keys of its own: [r*h, P + T, d].
        keys = self.k[:, :last].repeat_interleave(self.h // self.g, dim=0)
        shifts = self._document_shifts() if self.ranks else None
        for index, (start, end) in enumerate(tables.spans):
            positions = self.positions[:last]
            if shifts is not None and start < end:
                by = shifts[:, index, tables.document_of]  # [r*h, T]
                self._move_back(keys, by)
                positions = torch.cat(
                    (positions[:first].expand(by.shape[0], -1), positions[first:] - by), dim=1
                )[:, None]
            for a, b in row_chunks(first + start, first + end, self.r * self.h * last):
                scores = self._scores(q[:, :, a - first : b - first], keys)
                _hide_later(scores[..., a : first + end])
                self._hide_far(scores, self.positions[a:b, None], positions)
                self._weigh(scores, a, b)

    def later_tokens(self, start: int) -> None:
        """Tokens from `start` on, behind the documents: everything before, ranked per token."""
        tables = self.tables
        first, last = tables.layout.prefix_tokens, tables.layout.suffix_start
        total, d = self.k.shape[1:]
        widest = max(total, len(tables.spans) * d)
        for a, b in row_chunks(start, total, self.r * self.h * widest):
            q = self.q[:, :, a - self.first_query : b - self.first_query]
            placed = base_rotate(q, tables, a)
            positions = self.positions[:b]
            parts = [(0, first, placed), (last, b, placed)]
            if self.ranks:
                importance = token_importance(
                    q,
                    self.document_keys,
                    tables.layout.document_lengths,
                    self.unscaled,
                    tables.means,
                )
                shifts = document_shifts(importance, tables.lengths)  # [r, h, c, D]
                moved = self._move_forward(placed, shifts)
                positions = positions.expand(self.r * self.h, b - a, -1).clone()
                positions[..., first:last] -= shifts.flatten(0, 1)[..., tables.document_of]
                parts += [(first + s, first + e, moved[i]) for i, (s, e) in enumerate(tables.spans)]
            else:
                parts.append((first, last, placed))
            scores = self.q.new_empty(self.r * self.g, self.h // self.g * (b - a), b)
            for s, e, queries in parts:
                folded = queries.reshape(self.r * self.g, -1, d)
                torch.bmm(folded, self.k[:, s:e].transpose(1, 2), out=scores[..., s:e])
            scores = self.rule.cap_(scores).view(self.r * self.h, b - a, b)
            _hide_later(scores[..., a:])
            self._hide_far(scores, self.positions[a:b, None], positions)
            self._weigh(scores, a, b)

    def _document_shifts(self) -> Tensor:
        """`[r*h, D, D]`: how far each key document stands from its base, per query document."""
        layout = self.tables.layout
        queries = self.q[:, :, layout.prefix_tokens : layout.suffix_start]
        importance = document_importance(
            queries, self.document_keys, layout.document_lengths, self.unscaled, self.tables.means
        )
        return document_shifts(importance, self.tables.lengths).flatten(0, 1)

    def _move_back(self, keys: Tensor, by: Tensor) -> None:
        """Write the document keys, `by` `[r*h, T]` positions before their base, into `keys`."""
        tables = self.tables
        if not tables.rotates:
            return
        first, last = tables.layout.prefix_tokens, tables.layout.suffix_start
        base = self.k[:, None, first:last].expand(-1, self.h // self.g, -1, -1).flatten(0, 1)
        keys[:, first:] = rotate(base, tables.shift_cos[by], -tables.shift_sin[by], tables.style)

    def _move_forward(self, q: Tensor, shifts: Tensor) -> Tensor:
        """Queries `[r, h, c, d]`, moved on instead of each document's keys back: `[D, ...]`."""
        tables = self.tables
        by = shifts.movedim(-1, 0)
        q = q.expand(*by.shape, q.shape[-1])
        if not tables.rotates:
            return q
        return rotate(q, tables.shift_cos[by], tables.shift_sin[by], tables.style)

    def _scores(self, q: Tensor, keys: Tensor) -> Tensor:
        """Scores `[r*h, c, N]` of `[r, h, c, d]` queries and `[r*g or r*h, N, d]` keys."""
        folded = q.reshape(keys.shape[0], -1, q.shape[-1])
        scores = torch.bmm(folded, keys.transpose(1, 2))
        return self.rule.cap_(scores).view(self.r * self.h, q.shape[2], keys.shape[1])

    def _hide_far(self, scores: Tensor, query_positions: Tensor, key_positions: Tensor) -> None:
        if self.rule.window is not None:
            far = query_positions - key_positions >= self.rule.window
            scores.masked_fill_(far, -torch.inf)

    def _weigh(self, scores: Tensor, a: int, b: int) -> None:
        """Average the first values with scores `[r*h, c, n]`; results of query tokens `a..b`."""
        rows = slice(a - self.first_query, b - self.first_query)
        weights = torch.softmax(scores, dim=-1)
        if self.lse is not None:
            # The largest weight is exp(peak - lse), so no second sum of exponentials is needed.
            lse = scores.amax(dim=-1) - weights.amax(dim=-1).log()
            self.lse[:, :, rows] = lse.view(self.r, self.h, b - a)
        out = torch.bmm(
            weights.view(self.v.shape[0], -1, scores.shape[-1]), self.v[:, : scores.shape[-1]]
        )
        self.out[:, :, rows] = out.view(self.r, self.h, b - a, -1)


def _hide_later(scores: Tensor) -> None:
    """Hide keys after the query: row `i` of `[..., c, >= c]` keeps columns up to `i`."""
    rows = torch.arange(scores.shape[-2], device=scores.device)
    columns = torch.arange(scores.shape[-1], device=scores.device)
    scores.masked_fill_(columns > rows[:, None], -torch.inf)
