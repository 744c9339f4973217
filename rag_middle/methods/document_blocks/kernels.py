"""Attention in which documents do not attend to each other, as tensor operations.

A document's tokens see the prefix and their own document; tokens after the documents see
everything before them. What later tokens read from documents may be sharpened (APE,
arXiv:2502.05431) and weighed down (structured prompting, arXiv:2212.06713). The documents are
encoded in parallel, so the cost of a prompt grows with the sum of their squared lengths.

Where tokens stand is decided before: queries and keys come rotated, if they are rotated at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rag_middle.ops.flash import Attended, flash, flash_each, flash_last, joined, merged, with_sinks
from rag_middle.ops.scores import ScoreRule, attend_in_chunks, row_chunks, scores_at_once

if TYPE_CHECKING:
    from rag_middle.layout import PromptLayout

#: Where documents stand. ``"kept"``: as in the prompt.
#: ``"from_start"``: all begin after the prefix, and later tokens continue after the longest.
#: ``"to_end"``: likewise, but later tokens find them moved to end where the longest does.
#: ``"to_order"``: read so, then moved to their places in the prompt; later tokens have theirs.
#: ``"last"``: all end where the last one does.
Placement = Literal["kept", "from_start", "to_end", "to_order", "last"]


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


def token_positions(
    layout: PromptLayout, placement: Placement, tokens: Tensor, *, moved: bool = False
) -> Tensor:
    """Positions of the tokens at these indices of prompt and generated text.

    Args:
        layout: of the prompt.
        placement: of the documents.
        tokens: whole numbers from 0 on, of any shape.
        moved: where later tokens find the documents of ``"to_end"`` and ``"to_order"``, instead of
            where these are read.
    """
    if placement == "kept" or not layout.documents:
        return tokens
    first, last, longest = layout.prefix_tokens, layout.suffix_start, max(layout.document_lengths)
    table = torch.arange(last + 1, device="cpu")
    for start, end in layout.documents:
        if placement == "last":
            table[start:end] += last - end
        elif placement == "to_end" and moved:
            table[start:end] += first + longest - end
        elif placement != "to_order" or not moved:
            table[start:end] += first - start
    if placement in ("from_start", "to_end"):
        table[last] = first + longest
    # Tokens after the documents follow one another.
    beyond = (tokens - last).clamp(min=0)
    return table.to(tokens.device)[tokens.clamp(max=last)] + beyond


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
    bounds: Tensor | None = None,
) -> Tensor:
    """Attention of the prefix and of the documents.

    Args:
        q: `[r, h, n, d]`, all rows of one layout.
        k: `[r, g, n, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, n, dv]`.
        layout: of the prompt; tokens after its documents are not looked at.
        rule: from dot products to scores; its window compares positions.
        positions: of the tokens, `[n]`; asked where the rule has a window.
        sinks: learned extra score per head, `[h]`.
        bounds: `document_bounds` of the layout, if at hand.

    Returns:
        `[r, h, P + T, dv]`.
    """
    first, last = layout.prefix_tokens, layout.suffix_start
    if rule.softcap is None and rule.window is None:
        return with_sinks(_fused_documents(q, k, v, layout, rule.scale, bounds), sinks).out
    out = q.new_empty(*q.shape[:2], last, v.shape[-1])
    if first:
        queries, keys, values = (x[:, :, :first] for x in (q, k, v))
        out[:, :, :first] = _causal(queries, keys, values, positions[:first], rule, sinks)
    for start, end in layout.documents:
        if start < end:
            keys, values = (torch.cat((x[:, :, :first], x[:, :, start:end]), dim=2) for x in (k, v))
            at = torch.cat((positions[:first], positions[start:end]))
            out[:, :, start:end] = _causal(q[:, :, start:end], keys, values, at, rule, sinks)
    return out


def _fused_documents(
    q: Tensor, k: Tensor, v: Tensor, layout: PromptLayout, scale: float, bounds: Tensor | None
) -> Attended:
    """Prefix and documents, each its own causal attention; documents see the prefix as well."""
    first, last = layout.prefix_tokens, layout.suffix_start
    parts = []
    if first:
        queries, keys, values = (x[:, :, :first] for x in (q, k, v))
        parts.append(flash(queries, keys, values, scale=scale, causal=True))
    if last > first:
        queries, keys, values = (x[:, :, first:last] for x in (q, k, v))
        own = flash_each(queries, keys, values, layout.document_lengths, scale=scale, bounds=bounds)
        if first:
            of_prefix = flash(queries, k[:, :, :first], v[:, :, :first], scale=scale)
            own = merged(own, of_prefix)
        parts.append(own)
    if not parts:
        return Attended(q.new_empty(*q.shape[:2], 0, v.shape[-1]), q.new_empty(*q.shape[:2], 0))
    return joined(parts)


@torch.no_grad()
def attend_later(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rule: ScoreRule,
    positions: Tensor,
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
        positions: of the tokens, `[N]`; asked where the rule has a window.
        sharpening: of what is read from documents.
        sinks: learned extra score per head, `[h]`.

    Returns:
        `[r, h, m, dv]`.
    """
    if not layout.document_tokens:
        sharpening = NEUTRAL
    documents = (layout.prefix_tokens, layout.suffix_start)
    if not q.shape[2]:
        return q.new_empty(*q.shape[:3], v.shape[-1])
    if rule.softcap is not None or rule.window is not None:
        return _causal(q, k, v, positions, rule, sinks, sharpening, documents)
    if sharpening == NEUTRAL:
        return with_sinks(flash_last(q, k, v, scale=rule.scale), sinks).out
    read = _fused_sharpened(q, k, v, documents, rule.scale, sharpening)
    return with_sinks(read, sinks).out


def _fused_sharpened(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: tuple[int, int],
    scale: float,
    sharpening: Sharpening,
) -> Attended:
    """Documents at a temperature, their log-sum-exp made into their new mass, and all the rest."""
    first, last = documents
    out, lse = flash(
        q, k[:, :, first:last], v[:, :, first:last], scale=scale / sharpening.temperature
    )
    mass = lse * (sharpening.scale * sharpening.temperature)
    if sharpening.weight != 1:
        mass = mass + log(sharpening.weight)
    read = Attended(out, mass)
    if q.shape[2] == 1 and first:
        # One call for what lies on both sides: a copy of a few keys costs less than a merge.
        key, value = (torch.cat((x[:, :, :first], x[:, :, last:]), dim=2) for x in (k, v))
        return merged(read, flash(q, key, value, scale=scale))
    if first:
        read = merged(read, flash(q, k[:, :, :first], v[:, :, :first], scale=scale))
    return merged(read, flash_last(q, k[:, :, last:], v[:, :, last:], scale=scale))


def document_bounds(layout: PromptLayout, device: torch.device) -> Tensor:
    """Where each document begins and the last one ends, `[D + 1]` int32, from the first one on."""
    lengths = torch.tensor([0, *layout.document_lengths], dtype=torch.int32, device="cpu")
    return lengths.cumsum(0, dtype=torch.int32).to(device)


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    rule: ScoreRule,
    sinks: Tensor | None,
    sharpening: Sharpening = NEUTRAL,
    sharpened: tuple[int, int] = (0, 0),
) -> Tensor:
    """Attention of the last `m` of `N` tokens under a window or a soft-cap: `[r, h, m, dv]`.

    Arguments are those of `attend_later`, and the span of keys whose scores are sharpened.
    """
    m, total = q.shape[2], k.shape[2]
    token = torch.arange(total, device=q.device)
    positions = positions.to(q.device)
    of_queries = positions[-m:]

    def hidden(a: int, b: int) -> Tensor:
        later = token > token[total - m + a : total - m + b, None]
        if rule.window is None:
            return later
        return later | (of_queries[a:b, None] - positions >= rule.window)

    def sharpen_(all_scores: Tensor) -> None:
        # ``a / T + (S T - 1) lse(a / T) + ln w``: the exponentials keep their proportions and add
        # up to the documents' new mass.
        scores = all_scores[..., slice(*sharpened)]
        scores.div_(sharpening.temperature)
        mass = scores.logsumexp(-1, keepdim=True)
        power = sharpening.scale * sharpening.temperature - 1
        # Where a window hides all documents there is no mass to scale.
        scores.add_((power * mass).nan_to_num_(0.0, 0.0, 0.0) + log(sharpening.weight))

    change_ = None if sharpening == NEUTRAL else sharpen_
    return attend_in_chunks(q, k, v, rule, hidden, sinks=sinks, change_=change_)


def deviations(key: Tensor, cached_key: Tensor, value: Tensor, cached_value: Tensor) -> Tensor:
    """Squared distance of each token's keys and values from cached ones, over all heads.

    Args:
        key: `[r, g, n, d]`.
        cached_key: likewise, rotated at the same positions.
        value: `[r, g, n, dv]`.
        cached_value: likewise.

    Returns:
        `[r, n]` in float32.
    """
    of_keys = (key.float() - cached_key.float()).square().sum((1, 3))
    return of_keys + (value.float() - cached_value.float()).square().sum((1, 3))


def most_deviating(deviation: Tensor, share: float) -> Tensor:
    """Which tokens are recomputed: the `share` of them that deviates most, rounded down.

    Args:
        deviation: `[r, T]` of the tokens in documents.
        share: from 0 to 1.

    Returns:
        `[r, T]`, true for those that are.
    """
    chosen = deviation.topk(int(share * deviation.shape[1]), dim=1).indices
    return torch.zeros_like(deviation, dtype=torch.bool).scatter_(1, chosen, True)


@torch.no_grad()
def attend_from_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: Tensor,
    rule: ScoreRule,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of tokens that need not follow one another.

    Args:
        q: `[r, h, m, d]`.
        k: `[r, g, N, d]`; query head `i` uses head `i // (h/g)`.
        v: `[r, g, N, dv]`.
        columns: of the queries among the keys, `[m]`, ascending.
        rule: from dot products to scores; without a window.
        sinks: learned extra score per head, `[h]`.

    Returns:
        `[r, h, m, dv]`.
    """
    token = torch.arange(k.shape[2], device=q.device)
    if rule.softcap is not None or sinks is not None:
        return attend_in_chunks(q, k, v, rule, lambda a, b: token > columns[a:b, None], sinks=sinks)
    # Chunks: keys after the last query of one are left out.
    r, h, m, _ = q.shape
    parts = []
    for start, stop in row_chunks(0, m, r * h * len(token), scores_at_once(q.device)):
        seen = token <= columns[start:stop, None]
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[:, :, start:stop], k, v, attn_mask=seen, scale=rule.scale, enable_gqa=True
            )
        )
    return torch.cat(parts, dim=2)
