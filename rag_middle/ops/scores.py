"""Scores of queries on keys in pieces that fit a processor's cache, and their softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        window: a query attends to a key only where its position is less than `window` tokens ahead
            of the key's; None for no limit.
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


def document_tokens(
    lengths: Sequence[int], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Lengths of documents laid end to end, `[D]`, and the index of each token's, `[T]`."""
    tokens = torch.tensor(lengths, dtype=torch.long, device="cpu")
    document_of = torch.arange(len(tokens), device="cpu").repeat_interleave(tokens)
    return tokens.to(device), document_of.to(device)


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


def as_factor(x: Tensor) -> Tensor:
    """`x` as `products` takes it.

    Half precision stays where the device sums products of it in float32. A CPU's matrix product
    rounds the sums, and rounded scores would move weights by more than rounded inputs do.
    """
    sums_exactly = x.device.type in ("cuda", "meta") and torch.version.hip is None
    return x if sums_exactly else x.float()


def products(q: Tensor, keys: Tensor) -> Tensor:
    """Dot products `[b, m, n]` in float32 of `[b, m, d]` and `[b, n, d]`, from `as_factor`."""
    if q.dtype == torch.float32:
        return torch.bmm(q, keys.transpose(1, 2))
    return torch.bmm(q, keys.transpose(1, 2), out_dtype=torch.float32)


def weighed(weights: Tensor, values: Tensor) -> Tensor:
    """Sums `[b, m, dv]` in the values' dtype of `[b, n, dv]`, by weights `[b, m, n]` in float32."""
    if as_factor(values) is values:
        return torch.bmm(weights.to(values.dtype), values)
    return torch.bmm(weights, values.float()).to(values.dtype)


class Scratch:
    """Room for one block of scores, used again and again: fresh pages cost more than a softmax."""

    def __init__(self, device: torch.device) -> None:
        self._room = torch.empty(0, device=device, dtype=torch.float32)

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


@torch.no_grad()
def attend_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: ScoreRule,
    hidden: Callable[[int, int], Tensor],
    *,
    sinks: Tensor | None = None,
    change_: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Attention whose scores are made and spent for some queries at a time: `[r, h, m, dv]`.

    Args:
        q: `[r, h, m, d]`.
        k: `[r, g, N, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, N, dv]`.
        rule: from dot products to scores; a window is left to `hidden`.
        hidden: the keys that queries `a` to `b` do not attend to, boolean `[b - a, N]`.
        sinks: learned extra score per head, `[h]`.
        change_: of scores `[r * g, h/g, b - a, N]`, in place.
    """
    r, h, m, _ = q.shape
    g, total = k.shape[1], k.shape[2]
    share = h // g
    queries = as_factor(q.reshape(r * g, share, m, -1))
    keys, values = as_factor(k.reshape(r * g, total, -1)), v.reshape(r * g, total, -1)
    parts = []
    for a, b in row_chunks(0, m, r * h * total, scores_at_once(q.device)):
        scores = products(queries[:, :, a:b].flatten(1, 2), keys).mul_(rule.scale)
        scores = rule.cap_(scores).view(r * g, share, b - a, total)
        scores.masked_fill_(hidden(a, b), -torch.inf)
        if change_ is not None:
            change_(scores)
        if sinks is not None:
            extra = sinks.float().repeat(r).view(r * g, share, 1, 1)
            scores = torch.cat((scores, extra.expand(-1, -1, b - a, 1)), dim=-1)
        weights = softmax_(scores)[..., :total].flatten(1, 2)
        parts.append(weighed(weights, values).view(r, h, b - a, -1))
    return torch.cat(parts, dim=2)
