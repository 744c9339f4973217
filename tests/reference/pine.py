"""PINE (arXiv:2407.01100, section 3) one query, one key at a time.

Written to be read beside the paper, not to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Span = tuple[int, int]
Place = Callable[[Tensor, int], Tensor]


def rotary_place(cos: Tensor, sin: Tensor, pairing: Literal["half", "interleaved"]) -> Place:
    """A function that puts a head vector `[d]` at a position."""

    pairs = cos.shape[1]
    half = pairing == "half"
    first = slice(pairs) if half else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if half else slice(1, 2 * pairs, 2)

    def place(x: Tensor, position: int) -> Tensor:
        x, c, s = x.clone(), cos[position], sin[position]
        a, b = x[first].clone(), x[second].clone()
        x[first], x[second] = a * c - b * s, a * s + b * c
        return x

    return place


def naive_pine(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Sequence[Span],
    place: Place | None,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    ablation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of prompt and generated tokens `[h, n, d]`; returns output and log-sum-exp.

    `documents` are spans of the prompt. Tokens behind them are suffix or generated: both are
    treated alike.
    """
    heads, n, _ = q.shape
    shared_by = heads // k.shape[0]
    out = torch.zeros(heads, n, v.shape[-1])
    lse = torch.zeros(heads, n)
    for head in range(heads):
        keys, values = k[head // shared_by], v[head // shared_by]
        for token in range(n):
            positions = key_positions(q[head], keys, documents, token, scale, softcap, ablation)
            at = query_position(documents, token)
            scores, seen = [], []
            for other in range(n):
                if not sees(documents, token, other):
                    continue
                if window is not None and at - positions[other] >= window:
                    continue
                if place is None:
                    dot = q[head, token] @ keys[other]
                else:
                    dot = place(q[head, token], at) @ place(keys[other], positions[other])
                scores.append(score(dot, scale, softcap))
                seen.append(values[other])
            lse[head, token] = torch.stack(scores).logsumexp(0)
            out[head, token] = torch.stack(scores).softmax(0) @ torch.stack(seen)
    return out, lse


def score(dot: Tensor, scale: float, softcap: float | None) -> Tensor:
    return dot * scale if softcap is None else softcap * torch.tanh(dot * scale / softcap)


def document_of(documents: Sequence[Span], token: int) -> int | None:
    for index, (start, end) in enumerate(documents):
        if start <= token < end:
            return index
    return None


def sees(documents: Sequence[Span], token: int, other: int) -> bool:
    """Everything before; for a document token also all of the documents behind its own."""
    mine, theirs = document_of(documents, token), document_of(documents, other)
    if mine is not None and theirs is not None and mine != theirs:
        return True
    return other <= token


def query_position(documents: Sequence[Span], token: int) -> int:
    """A document is the last one where it is the query; other tokens stay in place."""
    index = document_of(documents, token)
    if index is None:
        return token
    return documents[-1][1] - documents[index][1] + token


def key_positions(
    q: Tensor,
    k: Tensor,
    documents: Sequence[Span],
    token: int,
    scale: float,
    softcap: float | None,
    ablation: str | None = None,
) -> list[int]:
    """Where the query `token` of one head believes every key to stand."""
    positions = list(range(k.shape[0]))
    if not documents:
        return positions
    own = document_of(documents, token)
    others = [index for index in range(len(documents)) if index != own]
    amount = [0.0] * len(documents)
    # A document ranks the others once for all of its tokens, a later token for itself.
    queries = [token] if own is None else range(*documents[own])
    for query in queries:
        for index, share in shares(q[query], k, [documents[i] for i in others], scale, softcap):
            amount[others[index]] += share
    ranked = sorted(others, key=lambda index: -amount[index])  # stable: earlier document nearer
    if ablation == "reversed":
        ranked = sorted(others, key=lambda index: amount[index])
    elif ablation == "no_reassignment":
        ranked = others[::-1]
    end = documents[-1][1]
    for index in ([] if own is None else [own]) + ranked:
        start, stop = documents[index]
        for offset, key in enumerate(range(start, stop)):
            positions[key] = end - (stop - start) + offset
        end -= stop - start
    return positions


def shares(
    q: Tensor, k: Tensor, documents: Sequence[Span], scale: float, softcap: float | None
) -> list[tuple[int, float]]:
    """Mean attention of one query to the tokens of each document, without positions."""
    weights = {
        key: math.exp(score(q @ k[key], scale, softcap))
        for start, end in documents
        for key in range(start, end)
    }
    total = sum(weights.values())
    return [
        (index, sum(weights[key] for key in range(start, end)) / total / (end - start))
        for index, (start, end) in enumerate(documents)
        if end > start
    ]
