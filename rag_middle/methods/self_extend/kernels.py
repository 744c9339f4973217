"""Attention with exact positions nearby and grouped ones beyond (Self-Extend, arXiv:2401.01325).

Queries and keys come rotated twice: at their own positions, which decide about keys fewer than
`window` tokens away, and at grouped positions for all others. What is near is attention in a
sliding window, what is far is causal attention `window` tokens apart, in a window too where the
model has one; their log-sum-exp makes them one softmax. Under a soft-cap, scores are computed in
blocks, each once: columns that all rows of a block see nearby are never scored by grouped
positions, and the other way round. No tensor here has as many rows and columns as the prompt.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rag_middle.ops.flash import Attended as Fused
from rag_middle.ops.flash import flash_window, joined, merged, with_sinks
from rag_middle.ops.scores import (
    ScoreRule,
    as_factor,
    products,
    row_chunks,
    scores_at_once,
    softmax_,
    weighed,
)


class TwoFold(NamedTuple):
    """One tensor `[r, heads, n, d]` rotated at exact and at grouped positions."""

    near: Tensor
    far: Tensor


class Attended(NamedTuple):
    """Result of `attend`.

    Attributes:
        out: `[r, h, m, dv]` in the values' dtype.
        received: `[r, h, m]` float32, what each query gives to the chosen key, 0 before it; None
            where not asked for.
        watched: `[r, h, N]` float32, weights of the watched query; None where not asked for.
    """

    out: Tensor
    received: Tensor | None
    watched: Tensor | None


@torch.no_grad()
def attend(
    q: TwoFold,
    k: TwoFold,
    v: Tensor,
    window: int,
    rule: ScoreRule,
    *,
    sinks: Tensor | None = None,
    watch: int | None = None,
    key: int = 0,
) -> Attended:
    """Causal attention of the last `m` of `N` tokens.

    Args:
        q: `[r, h, m, d]`.
        k: `[r, g, N, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, N, dv]`.
        window: a key fewer than this many tokens before the query is near.
        rule: from dot products to scores; its window counts tokens.
        sinks: learned extra score per head, `[h]`.
        watch: index of a query; return its weights, and the chosen key's in all rows, too.
        key: index of that key.
    """
    if rule.softcap is None:
        read = with_sinks(_fused(q, k, v, window, rule), sinks)
        return _with_weights(read, q, k, window, rule, watch, key)
    r, h, m, d = q.near.shape
    g, total = k.near.shape[1], k.near.shape[2]
    share, first = h // g, total - m
    out = v.new_empty(r * h, m, v.shape[-1])
    received = out.new_zeros(r * h, m, dtype=torch.float32) if watch is not None else None
    watched = out.new_zeros(r * h, total, dtype=torch.float32) if watch is not None else None
    queries = TwoFold(*(x.reshape(r * g, share, m, d) for x in q))
    keys = TwoFold(*(x.flatten(0, 1) for x in k))
    values = v.flatten(0, 1)
    alive = scores_at_once(v.device)
    step = max(1, alive // max(1, share * m * total))
    for start in range(0, r * g, step):
        heads = slice(start, start + step)
        rows = slice(start * share, (start + step) * share)
        near, far = (as_factor(x[heads]) for x in queries)
        near_keys, far_keys = (as_factor(x[heads]) for x in keys)
        of_values = values[heads]
        count = near.shape[0]
        for a, b in row_chunks(first, total, count * share * total, alive):
            part = slice(a - first, b - first)
            scores = _scores(near[:, :, part], far[:, :, part], near_keys, far_keys, window, a, b)
            rule.cap_(scores.mul_(rule.scale))
            _hide(scores, a, b, rule.window)
            if sinks is not None:
                extra = sinks.float().repeat(r)[rows].view(count, share, 1, 1)
                scores = torch.cat((scores, extra.expand(-1, -1, b - a, 1)), dim=-1)
            weights = softmax_(scores)[..., :b]
            mixed = weighed(weights.flatten(1, 2), of_values[:, :b])
            out[rows, part] = mixed.view(count * share, b - a, -1)
            if watch is None or received is None or watched is None:
                continue
            if key < b:
                received[rows, part] = weights[..., key].flatten(0, 1)
            if a <= first + watch < b:
                watched[rows, :b] = weights[:, :, first + watch - a].flatten(0, 1)
    return Attended(
        out.view(r, h, m, -1),
        None if received is None else received.view(r, h, m),
        None if watched is None else watched.view(r, h, total),
    )


def _fused(q: TwoFold, k: TwoFold, v: Tensor, window: int, rule: ScoreRule) -> Fused:
    """Two attentions and their merge."""
    m, total = q.near.shape[2], k.near.shape[2]
    limit = total if rule.window is None else rule.window
    near = flash_window(q.near, k.near, v, min(window, limit), scale=rule.scale)
    # The first rows have nothing far behind them.
    alone = max(0, min(m, window - (total - m)))
    if alone == m or limit <= window:
        return near
    reach = total - window
    far = flash_window(
        q.far[:, :, alone:],
        k.far[:, :, :reach],
        v[:, :, :reach],
        limit - window,
        scale=rule.scale,
    )
    both = merged(Fused(near.out[:, :, alone:], near.lse[:, :, alone:]), far)
    return joined(
        [Fused(near.out[:, :, :alone], near.lse[:, :, :alone]), both] if alone else [both]
    )


def _with_weights(
    read: Fused,
    q: TwoFold,
    k: TwoFold,
    window: int,
    rule: ScoreRule,
    watch: int | None,
    key: int,
) -> Attended:
    """The weights that were asked for: one row and one column, from their scores."""
    if watch is None:
        return Attended(read.out, None, None)
    r, h, m, d = q.near.shape
    g, total = k.near.shape[1], k.near.shape[2]
    limit = total if rule.window is None else rule.window

    def scores(queries: Tensor, keys: Tensor) -> Tensor:
        grouped = as_factor(queries.reshape(r * g, -1, d))
        products_of = products(grouped, as_factor(keys.flatten(0, 1)))
        return products_of.view(r, h, -1, keys.shape[2]) * rule.scale

    first, own = total - m, total - m + watch
    alone = max(0, min(m, key + window - first))
    column = [
        scores(queries[:, :, rows], keys[:, :, key : key + 1])[..., 0]
        for queries, keys, rows in (
            (q.near, k.near, slice(0, alone)),
            (q.far, k.far, slice(alone, m)),
        )
        if rows.start < rows.stop
    ]
    received = torch.exp(torch.cat(column, dim=2) - read.lse)
    received[:, :, : max(0, key - first)] = 0  # rows before the key
    received[:, :, max(0, key + limit - first) :] = 0  # rows that do not reach it
    # Behind the watched query there is nothing that it sees, nor before its window.
    near, begin = max(0, own - min(window, limit) + 1), max(0, own - limit + 1)
    query = TwoFold(*(x[:, :, watch : watch + 1] for x in q))
    row = [scores(query.near, k.near[:, :, near : own + 1])]
    if begin < near:
        row.insert(0, scores(query.far, k.far[:, :, begin:near]))
    seen = torch.exp(torch.cat(row, dim=-1)[:, :, 0] - read.lse[:, :, watch, None])
    return Attended(read.out, received, pad(seen, (begin, total - own - 1)))


def _scores(
    near: Tensor,
    far: Tensor,
    near_keys: Tensor,
    far_keys: Tensor,
    window: int,
    a: int,
    b: int,
) -> Tensor:
    """Scores `[g, share, b - a, b]` of the queries of tokens `a` to `b` on the keys up to `b`.

    Args:
        near: `[g, share, b - a, d]`, like `far`.
        far: see there.
        near_keys: `[g, N, d]`, like `far_keys`.
        far_keys: see there.
        window: distance from which on a key is far.
        a: first query token.
        b: after the last one.
    """
    # Columns before `low` are far from every row, those from `high` on near to every row.
    low, high = max(0, a - window + 1), max(0, b - window)
    shape = near.shape[:-1]
    of_near = products(near.flatten(1, 2), near_keys[:, low:b])
    if not high:
        return of_near.view(*shape, b)
    of_far = products(far.flatten(1, 2), far_keys[:, :high])
    of_near, of_far = of_near.view(*shape, b - low), of_far.view(*shape, high)
    row = torch.arange(a, b, device=near.device)[:, None]
    is_far = row - torch.arange(low, high, device=near.device) >= window
    either = torch.where(is_far, of_far[..., low:], of_near[..., : high - low])
    return torch.cat((of_far[..., :low], either, of_near[..., high - low :]), dim=-1)


def _hide(scores: Tensor, a: int, b: int, window: int | None) -> None:
    """Hide what rows `a` to `b` must not see: later tokens, and those beyond a sliding window."""
    if b - a > 1:
        later = torch.ones(b - a, b - a, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., a:].masked_fill_(later, -torch.inf)
    if window is not None:
        row = torch.arange(a, b, device=scores.device)[:, None]
        beyond = row - torch.arange(b, device=scores.device) >= window
        scores.masked_fill_(beyond, -torch.inf)
