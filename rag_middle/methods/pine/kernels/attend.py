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

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.errors import PromptError
from rag_middle.methods.pine.kernels.heads import HeadBlock
from rag_middle.methods.pine.kernels.tables import PineTables, base_rotate
from rag_middle.ops.scores import ScoreRule, Scratch, scores_at_once


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
        self._q, self._k, self._v = (x.flatten(0, 1) for x in (q, k, v))
        self._document_keys = state.document_keys.flatten(0, 1)
        self._out = self._q.new_empty(*self._q.shape[:2], v.shape[-1])
        self._lse = (
            self._out.new_empty(self._q.shape[:2], dtype=torch.float32) if need_lse else None
        )
        self._tables, self._rule = state.tables, rule

    def head_blocks(self, start: int, end: int, at_once: int) -> Iterator[HeadBlock]:
        """As many heads at a time as leave room for the scores of `at_once` query tokens.

        Args:
            start: first query token.
            end: after the last query token; keys behind it are left out.
            at_once: query tokens that are worth scoring together, and what else there is of numbers
                per key and query head meanwhile.
        """
        if start == end:
            return
        seen = self._k.shape[1] - self._q.shape[1] + end
        share = self._q.shape[0] // self._k.shape[0]
        step = max(1, scores_at_once(self._q.device) // max(1, share * at_once * seen))
        scratch = Scratch(self._q.device)
        for first in range(0, self._k.shape[0], step):
            keys, queries = slice(first, first + step), slice(first * share, (first + step) * share)
            yield HeadBlock(
                self._q[queries, start:end],
                self._k[keys, :seen],
                self._v[keys, :seen],
                self._document_keys[keys],
                self._out[queries, start:end],
                None if self._lse is None else self._lse[queries, start:end],
                self._tables,
                self._rule,
                scratch,
            )

    def result(self) -> tuple[Tensor, Tensor | None]:
        """`[r, h, m, dv]` and `[r, h, m]`."""
        out = self._out.view(*self._shape, -1)
        return out, None if self._lse is None else self._lse.view(self._shape)
