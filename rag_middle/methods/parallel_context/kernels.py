"""Attention in which documents do not attend to each other, as tensor operations.

A document's tokens see the prefix and their own document; tokens after the documents see
everything before them. What later tokens read from documents may be sharpened (APE,
arXiv:2502.05431) and weighed down (structured prompting, arXiv:2212.06713). The documents are
encoded in parallel, so the cost of a prompt grows with the sum of their squared lengths.

Where tokens stand is decided before: queries and keys come rotated, if they are rotated at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rag_middle.ops.scores import (
    ScoreRule,
    row_chunks,
    scores_at_once,
    softmax_,
)

if TYPE_CHECKING:
    from rag_middle.layout import PromptLayout

__all__ = [
    "NEUTRAL",
    "Placement",
    "Sharpening",
    "attend_documents",
    "attend_later",
    "document_shifts_to_end",
    "token_positions",
]

#: Where documents stand: as in the prompt; all beginning behind the prefix; likewise, and moved to
#: end together for the tokens that read them; all ending where the last one does.
Placement = Literal["kept", "from_start", "to_end", "last"]

#: A batch of documents takes those in that are at least this part as long as its longest.
_SIMILAR = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpening:
    """How later tokens' attention to documents differs from plain softmax attention.

    Scores ``a_j`` on document tokens become ``a_j / T``, and the documents' total mass
    ``w * (sum_j exp(a_j / T)) ** (S * T)``.

    Attributes:
        temperature: ``T``.
        scale: ``S``.
        weight: ``w``.
    """

    temperature: float = 1.0
    scale: float = 1.0
    weight: float = 1.0


NEUTRAL = Sharpening()


def token_positions(layout: PromptLayout, placement: Placement, tokens: Tensor) -> Tensor:
    """Positions of the tokens at these indices of prompt and generated text.

    Args:
        layout: of the prompt.
        placement: of the documents. Positions of ``"to_end"`` are those of ``"from_start"``: keys
            are moved afterwards, by `document_shifts_to_end`.
        tokens: whole numbers from 0 on, of any shape.
    """
    if placement == "kept" or not layout.documents:
        return tokens
    first, last = layout.prefix_tokens, layout.suffix_start
    table = torch.arange(last + 1)
    for start, end in layout.documents:
        table[start:end] += (last - end) if placement == "last" else (first - start)
    if placement != "last":
        table[last] = first + max(layout.document_lengths)
    # Tokens after the documents follow one another.
    beyond = (tokens - last).clamp(min=0)
    return table.to(tokens.device)[tokens.clamp(max=last)] + beyond


def document_shifts_to_end(layout: PromptLayout) -> Tensor:
    """By how much each document token `[T]` moves so that all documents end together."""
    lengths = layout.document_lengths
    longest = max(lengths, default=0)
    moves = torch.tensor([longest - length for length in lengths], dtype=torch.long)
    return moves.repeat_interleave(torch.tensor(lengths, dtype=torch.long))


@torch.no_grad()
def attend_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rule: ScoreRule,
    positions: Tensor,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of the prefix and of the documents.

    Args:
        q: `[r, h, n, d]`, all rows of one layout.
        k: `[r, g, n, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, n, dv]`.
        layout: of the prompt; tokens after its documents are not looked at.
        rule: from dot products to scores; its window compares positions.
        positions: of the tokens, `[n]`, on the CPU.
        sinks: learned extra score per head, `[h]`.

    Returns:
        `[r, h, P + T, dv]`.
    """
    first, last = layout.prefix_tokens, layout.suffix_start
    out = q.new_empty(*q.shape[:2], last, v.shape[-1])
    if first:
        queries, keys, values = (x[:, :, :first] for x in (q, k, v))
        at = positions[None, :first]
        out[:, :, :first] = _causal(queries, keys, values, at, at, rule, sinks)
    rows = q.shape[0]
    for spans in _similar_lengths(layout.documents):
        longest = spans[0][1] - spans[0][0]
        # Filled up on the right, where no token of the document looks.
        columns = torch.tensor([[min(s + t, e - 1) for t in range(longest)] for s, e in spans])
        of_prefix = torch.arange(first).expand(len(spans), -1)
        seen = torch.cat((of_prefix, columns), dim=1)
        # [D' * r, heads, m, d]: documents side by side in the batch.
        queries = _side_by_side(q, columns)
        keys, values = _side_by_side(k, seen), _side_by_side(v, seen)
        at = positions[columns].repeat_interleave(rows, dim=0)
        of_keys = positions[seen].repeat_interleave(rows, dim=0)
        read = _causal(queries, keys, values, at, of_keys, rule, sinks)
        read = read.view(len(spans), rows, *read.shape[1:])
        for index, (start, end) in enumerate(spans):
            out[:, :, start:end] = read[index, :, :, : end - start]
    return out


@torch.no_grad()
def attend_later(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rule: ScoreRule,
    query_positions: Tensor,
    key_positions: Tensor,
    sharpening: Sharpening = NEUTRAL,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of tokens after the documents to everything before them.

    Args:
        q: `[r, h, m, d]` queries of the last `m` of `N` tokens.
        k: `[r, g, N, d]`.
        v: `[r, g, N, dv]`.
        layout: of the prompt.
        rule: as for `attend_documents`.
        query_positions: `[m]`, on the CPU.
        key_positions: `[N]`, likewise.
        sharpening: of what is read from documents.
        sinks: learned extra score per head, `[h]`.

    Returns:
        `[r, h, m, dv]`.
    """
    return _causal(
        q,
        k,
        v,
        query_positions[None],
        key_positions[None],
        rule,
        sinks,
        sharpening if layout.document_tokens else NEUTRAL,
        (layout.prefix_tokens, layout.suffix_start),
    )


def _similar_lengths(spans: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Documents that are worth computing together, the longest first; empty ones left out."""
    batch: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span[0] - span[1]):
        length = span[1] - span[0]
        if batch and length < _SIMILAR * (batch[0][1] - batch[0][0]):
            yield batch
            batch = []
        if length:
            batch.append(span)
    if batch:
        yield batch


def _side_by_side(x: Tensor, columns: Tensor) -> Tensor:
    """`[D' * r, heads, m, d]` of `[r, heads, n, d]`: the columns `[D', m]` of each document."""
    picked = x[:, :, columns.to(x.device)]  # [r, heads, D', m, d]
    return picked.movedim(2, 0).flatten(0, 1)


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    rule: ScoreRule,
    sinks: Tensor | None,
    sharpening: Sharpening = NEUTRAL,
    sharpened: tuple[int, int] = (0, 0),
) -> Tensor:
    """Attention of the last `m` of `N` tokens: `[b, h, m, dv]`.

    Args:
        q: `[b, h, m, d]`.
        k: `[b, g, N, d]`.
        v: `[b, g, N, dv]`.
        query_positions: `[b or 1, m]`.
        key_positions: `[b or 1, N]`.
        rule: from dot products to scores.
        sinks: `[h]`.
        sharpening: of the scores on keys `sharpened`.
        sharpened: a span of keys before all queries.
    """
    m, total = q.shape[2], k.shape[2]
    if m == 0:
        return q.new_empty(*q.shape[:3], v.shape[-1])
    if rule.softcap is None and sinks is None and sharpening == NEUTRAL:
        visible = None
        if rule.window is not None or 1 < m < total:
            hidden = _hidden(m, total, query_positions, key_positions, rule.window, q.device)
            visible = ~hidden[:, None]
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible,
            is_causal=visible is None and m > 1,
            scale=rule.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    b, h, g = q.shape[0], q.shape[1], k.shape[1]
    share = h // g
    # float32: half-precision scores would have to be widened for the softmax anyhow.
    queries = q.float().view(b, g, share, m, -1) * rule.scale
    keys, values = k.float().transpose(-1, -2)[:, :, None], v.float()[:, :, None]
    unscaled = replace(rule, scale=1.0)
    limited = rule.window is not None or m > 1
    hidden = _hidden(m, total, query_positions, key_positions, rule.window, q.device)
    parts = []
    for start, stop in row_chunks(0, m, b * h * total, scores_at_once(q.device)):
        scores = unscaled.cap_(torch.matmul(queries[..., start:stop, :], keys))
        if limited:
            scores.masked_fill_(hidden[:, None, None, start:stop], -torch.inf)
        if sharpening != NEUTRAL:
            _sharpen_(scores[..., slice(*sharpened)], sharpening)
        if sinks is not None:
            extra = sinks.float().view(1, g, share, 1, 1).expand(b, -1, -1, stop - start, -1)
            scores = torch.cat((scores, extra), dim=-1)
        parts.append(torch.matmul(softmax_(scores)[..., :total], values).flatten(1, 2))
    return torch.cat(parts, dim=2).to(v.dtype)


def _hidden(
    m: int,
    total: int,
    query_positions: Tensor,
    key_positions: Tensor,
    window: int | None,
    device: torch.device,
) -> Tensor:
    """What the last `m` of `total` tokens do not see, boolean `[b or 1, m, total]`."""
    token = torch.arange(total, device=device)
    hidden = (token[None, :] > token[total - m :, None])[None]
    if window is not None:
        beyond = query_positions[:, :, None] - key_positions[:, None, :] >= window
        hidden = hidden | beyond.to(device)
    return hidden


def _sharpen_(scores: Tensor, sharpening: Sharpening) -> None:
    """Scores `[..., T]` whose plain softmax gives the sharpened weights, in place.

    ``a / T + (S T - 1) lse(a / T) + ln w``: the exponentials keep their proportions and add up to
    the documents' new mass.
    """
    scores.div_(sharpening.temperature)
    mass = scores.logsumexp(-1, keepdim=True)
    power = sharpening.scale * sharpening.temperature - 1
    # Where a window hides all documents there is no mass to scale.
    scores.add_((power * mass).nan_to_num_(0.0, 0.0, 0.0) + log(sharpening.weight))
