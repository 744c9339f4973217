"""How much a document matters to a query, without position embedding (arXiv:2407.01100, section 3).

Scores are taken from un-rotated queries and keys, so that where a document stands has no say in
its own importance. Everything here is float32 whatever the model's dtype: importances are only
compared with each other, and half precision ties documents that differ, which would hand the
order of the prompt back to the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "ScoreRule",
    "Scratch",
    "document_importance",
    "document_means",
    "document_shifts",
    "row_chunks",
    "scores_at_once",
    "softmax_",
    "spans_of",
    "token_importance",
]

# Scores alive at once. On CPU 2 MiB of floats per thread, which stay in its cache from the product
# through the softmax to the next product; elsewhere enough to keep a large device busy.
_SCORES_PER_CPU_THREAD = 2**19
_SCORES_ON_DEVICE = 2**25


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRule:
    """From the dot product of a query and a key to the score under the softmax.

    Attributes:
        scale: factor of the dot product, usually ``1 / sqrt(d)``.
        softcap: ``c`` in ``c * tanh(score / c)`` (gemma 2); None for none.
        window: a query sees a key only where its position is less than `window` tokens ahead of
            the key's; None for no limit. Importance ignores it.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None

    def cap_(self, scores: Tensor) -> Tensor:
        """Soft-cap scaled scores in place."""
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores


def spans_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open spans of documents laid end to end from token 0."""
    spans, start = [], 0
    for length in lengths:
        spans.append((start, start + length))
        start += length
    return spans


def scores_at_once(device: torch.device) -> int:
    """How many scores to compute before they are used up."""
    if device.type == "cpu":
        return _SCORES_PER_CPU_THREAD * torch.get_num_threads()
    return _SCORES_ON_DEVICE


def row_chunks(start: int, end: int, row_elements: int, alive: int) -> Iterator[tuple[int, int]]:
    """Split rows `start..end` of `row_elements` so that at most `alive` elements are in a chunk."""
    step = max(1, alive // max(1, row_elements))
    count = -(-(end - start) // step)
    for index in range(count):  # chunks of nearly equal height: a short last one wastes a launch
        yield (
            start + (end - start) * index // count,
            start + (end - start) * (index + 1) // count,
        )


class Scratch:
    """Room for one block of scores, used again and again: fresh pages cost more than a softmax."""

    def __init__(self, device: torch.device) -> None:
        self._room = torch.empty(0, device=device)

    def product(self, q: Tensor, keys: Tensor) -> Tensor:
        """Dot products `[b, m, n]` of `[b, m, d]` and `[b, n, d]`, valid until the next call."""
        shape = (q.shape[0], q.shape[1], keys.shape[1])
        size = shape[0] * shape[1] * shape[2]
        if self._room.numel() < size:
            self._room = self._room.new_empty(size)
        scores = self._room[:size].view(shape)
        return torch.bmm(q, keys.transpose(1, 2), out=scores)


def softmax_(scores: Tensor) -> Tensor:
    """Softmax over the last axis, in place where that is known to be safe."""
    if scores.device.type == "cpu":
        return torch.softmax(scores, dim=-1, out=scores)
    return torch.softmax(scores, dim=-1)


def document_means(lengths: Sequence[int], device: torch.device | None = None) -> Tensor:
    """The matrix that averages over the tokens of each document.

    Args:
        lengths: tokens of each document; an empty document averages to zero.
        device: where to put it.

    Returns:
        `[T, D]` float32, `1 / length` where the token belongs to the document.
    """
    means = torch.zeros(sum(lengths), len(lengths))
    for index, (start, end) in enumerate(spans_of(lengths)):
        means[start:end, index] = 1.0 / max(1, end - start)
    return means.to(device)


def document_importance(
    q: Tensor,
    k: Tensor,
    lengths: Sequence[int],
    rule: ScoreRule,
    means: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """Importance of every document to every other document, per query head.

    Softmax of a document's queries over the keys of all other documents, averaged over the tokens
    of each key document and summed over the query tokens (a mean would rank the same).

    Args:
        q: `[r, h, T, d]` un-rotated queries of the documents.
        k: `[r, g, T, d]` un-rotated keys of the documents; query head `i` uses head `i // (h/g)`.
        lengths: tokens of each document, `T` together.
        rule: scale and soft-cap of the scores.
        means: `document_means(lengths)`, if at hand.
        scratch: room for scores, if at hand.

    Returns:
        `[r, h, D, D]` float32: row, query head, query document, key document. A document is
        infinitely important to itself.
    """
    r, h, tokens, _ = q.shape
    g, count = k.shape[1], len(lengths)
    means = document_means(lengths, q.device) if means is None else means
    scratch = Scratch(q.device) if scratch is None else scratch
    alive = scores_at_once(q.device)
    q = q.float() * rule.scale
    # Keys (and their documents) twice in a row: all documents but one are then one slice, and the
    # query's own document is left out rather than computed and subtracted.
    ring = torch.cat((k, k), dim=2).float().flatten(0, 1)
    ring_means = torch.cat((means, means))
    out = torch.zeros(r, h, count, count, device=q.device)
    for index, (start, end) in enumerate(spans_of(lengths)):
        others = tokens - (end - start)
        if start == end or not others:
            continue
        keys = ring[:, end : end + others]
        received = torch.zeros(r * h, others, device=q.device)
        for a, b in row_chunks(start, end, r * h * others, alive):
            scores = scratch.product(q[:, :, a:b].reshape(r * g, -1, q.shape[-1]), keys)
            shares = softmax_(rule.cap_(scores))
            received += shares.view(r * h, b - a, others).sum(dim=1)
        out[:, :, index] = (received @ ring_means[end : end + others]).view(r, h, count)
    out.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return out


def token_importance(
    q: Tensor,
    k: Tensor,
    lengths: Sequence[int],
    rule: ScoreRule,
    means: Tensor | None = None,
) -> Tensor:
    """Importance of every document to each token after the documents, per query head.

    Softmax of the token's query over the keys of all documents, averaged over each document.

    Args:
        q: `[r, h, m, d]` un-rotated queries of suffix or generated tokens.
        k: `[r, g, T, d]` un-rotated keys of the documents.
        lengths: tokens of each document, `T` together.
        rule: scale and soft-cap of the scores.
        means: `document_means(lengths)`, if at hand.

    Returns:
        `[r, h, m, D]` float32.
    """
    r, h, m, d = q.shape
    g = k.shape[1]
    means = document_means(lengths, q.device) if means is None else means
    queries = (q.float() * rule.scale).reshape(r * g, -1, d)
    scores = torch.bmm(queries, k.float().flatten(0, 1).transpose(1, 2))
    shares = softmax_(rule.cap_(scores))
    return (shares @ means).view(r, h, m, len(lengths))


def document_shifts(importance: Tensor, lengths: Tensor) -> Tensor:
    """By how many positions each document moves away from the query.

    The most important document stays nearest, at shift 0; every other one moves by the length of
    all documents ranked before it. Ties keep the order given: the earlier document is nearer.

    Args:
        importance: `[..., D]`.
        lengths: `[D]`, or `[..., D]` where prompts differ, integer tokens of each document, on the
            same device.

    Returns:
        `[..., D]` integer shifts, in prompt order of the documents.
    """
    order = importance.argsort(dim=-1, descending=True, stable=True)
    ranked = lengths.expand_as(order).gather(-1, order)
    before = ranked.cumsum(dim=-1) - ranked
    return torch.empty_like(before).scatter_(-1, order, before)
