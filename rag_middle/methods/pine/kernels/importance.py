"""How much a document matters to a query, without position embedding (arXiv:2407.01100, section 3).

Scores are taken from un-rotated queries and keys, so that where a document stands has no say in
its own importance. Everything here is float32 whatever the model's dtype: importances are only
compared with each other, and half precision ties documents that differ, which would hand the
order of the prompt back to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from rag_middle.ops.scores import ScoreRule, Scratch, row_chunks, scores_at_once, softmax_, spans_of

#: ``"importance"``: the most important document. ``"reversed"``: the least important one.
#: ``"prompt"``: the last one of the prompt.
Ranking = Literal["importance", "reversed", "prompt"]


def document_means(lengths: Sequence[int], device: torch.device | None = None) -> Tensor:
    """The matrix that averages over the tokens of each document.

    Args:
        lengths: tokens of each document; an empty document averages to zero.
        device: where to put it.

    Returns:
        `[T, D]` float32, `1 / length` where the token belongs to the document.
    """
    means = torch.zeros(sum(lengths), len(lengths), dtype=torch.float32, device="cpu")
    for index, (start, end) in enumerate(spans_of(lengths)):
        means[start:end, index] = 1.0 / max(1, end - start)
    return means.to(device)


def document_importance(
    q: Tensor,
    k: Tensor,
    lengths: Sequence[int],
    means: Tensor,
    rule: ScoreRule,
    scratch: Scratch,
) -> Tensor:
    """Importance of every document to every other document, per query head.

    Softmax of a document's queries over the keys of all other documents, averaged over the tokens
    of each key document and summed over the query tokens (a mean would rank the same).

    Args:
        q: `[h, T, d]` float32 un-rotated queries of the documents, times the rule's scale.
        k: `[g, T, d]` float32 un-rotated keys of the documents; query head `i` uses head
            `i // (h/g)`.
        lengths: tokens of each document, `T` together.
        means: `document_means(lengths)`.
        rule: soft-cap of the scores.
        scratch: room for scores.

    Returns:
        `[h, D, D]` float32: query head, query document, key document. A document is infinitely
        important to itself.
    """
    (h, tokens, d), g, count = q.shape, k.shape[0], len(lengths)
    # Keys (and their documents) twice in a row: all documents but one are then one slice, and the
    # query's own document is left out rather than computed and subtracted.
    ring, ring_means = torch.cat((k, k), dim=1), torch.cat((means, means))
    out = torch.zeros(h, count, count, device=q.device, dtype=torch.float32)
    for index, (start, end) in enumerate(spans_of(lengths)):
        others = tokens - (end - start)
        if start == end or not others:
            continue
        keys = ring[:, end : end + others]
        received = torch.zeros(h, others, device=q.device, dtype=torch.float32)
        for a, b in row_chunks(start, end, h * others, scores_at_once(q.device)):
            scores = scratch.product(q[:, a:b].reshape(g, -1, d), keys)
            shares = softmax_(rule.cap_(scores))
            received += shares.view(h, b - a, others).sum(dim=1)
        out[:, index] = received @ ring_means[end : end + others]
    out.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return out


def token_importance(q: Tensor, k: Tensor, means: Tensor, rule: ScoreRule) -> Tensor:
    """Importance of every document to each token after the documents, per query head.

    Softmax of the token's query over the keys of all documents, averaged over each document.

    Args:
        q: `[h, m, d]` un-rotated queries of suffix or generated tokens, as for
            `document_importance`.
        k: `[g, T, d]`, likewise.
        means: of the documents, `[T, D]`.
        rule: soft-cap of the scores.

    Returns:
        `[h, m, D]` float32.
    """
    h, m, d = q.shape
    scores = torch.bmm(q.reshape(k.shape[0], -1, d), k.transpose(1, 2))
    return (softmax_(rule.cap_(scores)) @ means).view(h, m, means.shape[1])


def document_shifts(importance: Tensor, lengths: Tensor, ranking: Ranking = "importance") -> Tensor:
    """By how many positions each document moves away from the query.

    The most important document stays nearest, at shift 0; every other one moves by the length of
    all documents ranked before it. Ties keep the order given: the earlier document is nearer.

    Args:
        importance: `[..., D]`; infinite for the query's own document.
        lengths: `[D]` integer tokens of each document, on the same device.
        ranking: what is nearest before the query's own document.

    Returns:
        `[..., D]` integer shifts, in prompt order of the documents.
    """
    if ranking != "importance":
        ranks = -importance
        if ranking == "prompt":
            ranks = torch.arange(importance.shape[-1], device=importance.device).to(importance)
        importance = torch.where(importance.isinf(), importance, ranks)
    order = importance.argsort(dim=-1, descending=True, stable=True)
    ranked = lengths.expand_as(order).gather(-1, order)
    before = ranked.cumsum(dim=-1) - ranked
    return torch.empty_like(before).scatter_(-1, order, before)
