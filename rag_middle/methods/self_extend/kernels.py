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

from rag_middle.ops.flash import Attended, flash_window, joined, merged, with_sinks
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


@torch.no_grad()
def attend(
    q: TwoFold,
    k: TwoFold,
    v: Tensor,
    window: int,
    rule: ScoreRule,
    *,
    sinks: Tensor | None = None,
) -> Attended:
    """Causal attention of the last `m` of `N` tokens.

    Args:
        q: `[r, h, m, d]`.
        k: `[r, g, N, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, N, dv]`.
        window: a key fewer than this many tokens before the query is near.
        rule: from dot products to scores; its window counts tokens.
        sinks: learned extra score per head, `[h]`.
    """
    read = (_fused if rule.softcap is None else _in_blocks)(q, k, v, window, rule)
    return with_sinks(read, sinks)


def _fused(q: TwoFold, k: TwoFold, v: Tensor, window: int, rule: ScoreRule) -> Attended:
    """Two attentions and their merge."""
    m, total = q.near.shape[2], k.near.shape[2]
    limit = total if rule.window is None else rule.window
    near = flash_window(q.near, k.near, v, min(window, limit), scale=rule.scale)
    # The first rows have nothing far before them.
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
    both = merged(Attended(near.out[:, :, alone:], near.lse[:, :, alone:]), far)
    return joined(
        [Attended(near.out[:, :, :alone], near.lse[:, :, :alone]), both] if alone else [both]
    )


@torch.no_grad()
def weights_on(
    key: int, q: TwoFold, k: TwoFold, lse: Tensor, window: int, rule: ScoreRule
) -> Tensor:
    """What each query gives to the key of this index, `[r, h, m]` in float32; 0 before it.

    `lse` is that of `attend`, whose arguments the others are.
    """
    m, total = q.near.shape[2], k.near.shape[2]
    first, limit = total - m, total if rule.window is None else rule.window
    alone = max(0, min(m, key + window - first))
    column = [
        _scores(rule, queries[:, :, rows], keys[:, :, key : key + 1])[..., 0]
        for queries, keys, rows in (
            (q.near, k.near, slice(0, alone)),
            (q.far, k.far, slice(alone, m)),
        )
        if rows.start < rows.stop
    ]
    received = torch.exp(torch.cat(column, dim=2) - lse)
    received[:, :, : max(0, key - first)] = 0  # rows before the key
    received[:, :, max(0, key + limit - first) :] = 0  # rows that do not reach it
    return received


@torch.no_grad()
def weights_of(
    row: int, q: TwoFold, k: TwoFold, lse: Tensor, window: int, rule: ScoreRule
) -> Tensor:
    """Weights of the query of this index, `[r, h, N]` in float32; arguments as for `weights_on`."""
    m, total = q.near.shape[2], k.near.shape[2]
    own, limit = total - m + row, total if rule.window is None else rule.window
    # After the query there is nothing that it sees, nor before its window.
    near, begin = max(0, own - min(window, limit) + 1), max(0, own - limit + 1)
    query = TwoFold(*(x[:, :, row : row + 1] for x in q))
    scores = [_scores(rule, query.near, k.near[:, :, near : own + 1])]
    if begin < near:
        scores.insert(0, _scores(rule, query.far, k.far[:, :, begin:near]))
    seen = torch.exp(torch.cat(scores, dim=-1)[:, :, 0] - lse[:, :, row, None])
    return pad(seen, (begin, total - own - 1))


def _scores(rule: ScoreRule, query: Tensor, key: Tensor) -> Tensor:
    (r, h, m, d), (g, n) = query.shape, key.shape[1:3]
    grouped = as_factor(query.reshape(r * g, -1, d))
    return rule.cap_(products(grouped, as_factor(key.flatten(0, 1))).view(r, h, m, n) * rule.scale)


def _in_blocks(q: TwoFold, k: TwoFold, v: Tensor, window: int, rule: ScoreRule) -> Attended:
    """Scores of some queries at a time, which no fused attention can cap."""
    r, h, m, d = q.near.shape
    g, total = k.near.shape[1], k.near.shape[2]
    first = total - m
    queries = TwoFold(*(as_factor(x.reshape(r * g, h // g, m, d)) for x in q))
    keys = TwoFold(*(as_factor(x.flatten(0, 1)) for x in k))
    values, token = v.flatten(0, 1), torch.arange(total, device=v.device)
    outputs, sums = [], []
    for a, b in row_chunks(0, m, r * h * total, scores_at_once(v.device)):
        stop = first + b
        # Columns before `low` are far from every row, those from `high` on near to every row.
        low, high = max(0, first + a - window + 1), max(0, stop - window)
        near = products(queries.near[:, :, a:b].flatten(1, 2), keys.near[:, low:stop])
        far = products(queries.far[:, :, a:b].flatten(1, 2), keys.far[:, :high])
        near, far = (x.view(r * g, h // g, b - a, -1) for x in (near, far))
        distance = token[first + a : stop, None] - token[:stop]
        both = torch.where(distance[:, low:high] < window, near[..., : high - low], far[..., low:])
        scores = torch.cat((far[..., :low], both, near[..., high - low :]), dim=-1)
        scores = rule.cap_(scores.mul_(rule.scale))
        hidden = distance < 0
        if rule.window is not None:
            hidden = hidden | (distance >= rule.window)
        scores.masked_fill_(hidden, -torch.inf)
        sums.append(scores.logsumexp(-1).view(r, h, b - a))
        weights = softmax_(scores).flatten(1, 2)
        outputs.append(weighed(weights, values[:, :stop]).view(r, h, b - a, -1))
    return Attended(torch.cat(outputs, dim=2), torch.cat(sums, dim=2))
