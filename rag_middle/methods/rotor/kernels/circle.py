"""Documents in a circle (RoToR, arXiv:2502.08662): who sees whom, and from how far away.

With one order of documents for all queries, a document as the query sees itself last and the
others before it in the circle of that order. Laid out for the document that ends at ``e`` of ``T``
document tokens, the prompt reads

::

    prefix | documents after e, up to T | documents from 0 to e

So its own document and those before it stand where they stand in the prompt. Those after it moved
in front, ``T`` positions back, and the prefix moved back by what now stands between, ``T - e``.
Tokens after the documents see the prompt as it is.

Moving a key back is moving the query on. So one rotation of all document queries serves the prefix,
another the documents after its own; keys stay as the model rotated them (`attend_circle`). Under a
soft-cap or a window scores have to be changed one by one: there the keys are moved, document by
document (`attend_by_document`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rag_middle.ops.flash import Attended, flash, flash_last, joined, merged
from rag_middle.ops.rope import RotaryStyle, WideTables, rotate_wide, wide_tables
from rag_middle.ops.scores import ScoreRule, attend_in_chunks, document_tokens

if TYPE_CHECKING:
    from rag_middle.layout import PromptLayout


class CircleRotations(NamedTuple):
    """Tables that move document queries on, and how the model pairs head dimensions.

    Attributes:
        wrapped: by ``T``, `[1, 2r]`.
        prefix: by ``T - e`` of the query's document, `[T, 2r]`.
        style: of the model.
    """

    wrapped: WideTables
    prefix: WideTables
    style: RotaryStyle

    @staticmethod
    def moves(layout: PromptLayout) -> list[int]:
        """``T``, then ``T - e`` of every document: positions to make tables of."""
        return [layout.document_tokens, *(layout.suffix_start - end for _, end in layout.documents)]

    @classmethod
    def of(
        cls, cos: Tensor, sin: Tensor, layout: PromptLayout, style: RotaryStyle, like: Tensor
    ) -> CircleRotations:
        """From tables `[1 + D, r]` at `moves(layout)`, without factors of yarn-like variants.

        `like` has the device and the number format of queries.
        """
        wide = (x.to(like.device, like.dtype) for x in wide_tables(cos, sin, style))
        _, document = document_tokens(layout.document_lengths, like.device)
        cos, sin = (torch.cat((x[:1], x[1 + document])) for x in wide)
        return cls(WideTables(cos[:1], sin[:1]), WideTables(cos[1:], sin[1:]), style)


@torch.no_grad()
def attend_circle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rotations: CircleRotations | None,
    *,
    scale: float,
) -> Attended:
    """Attention of a whole prompt.

    Args:
        q: `[r, h, n, d]`, rotated as in the prompt.
        k: `[r, g, n, d]`, likewise; query head `i` uses head `i // (h/g)`.
        v: `[r, g, n, dv]`.
        layout: of the prompt.
        rotations: of the layout; None in a layer without rotary embedding.
        scale: factor on the scores.
    """
    first, last, total = layout.prefix_tokens, layout.suffix_start, layout.document_tokens
    parts = []
    if first:
        queries, keys, values = (x[:, :, :first] for x in (q, k, v))
        parts.append(flash(queries, keys, values, scale=scale, causal=True))
    if total:
        queries, keys, values = (x[:, :, first:last] for x in (q, k, v))
        # Their own document and those before it stand where they stand in the prompt.
        read = flash(queries, keys, values, scale=scale, causal=True)
        after = _documents_after(queries, keys, values, layout, rotations, scale)
        if after is not None:
            count = after.lse.shape[2]
            circled = merged(Attended(read.out[:, :, :count], read.lse[:, :, :count]), after)
            alone = Attended(read.out[:, :, count:], read.lse[:, :, count:])
            read = joined([circled, alone])
        if first:
            if rotations is not None:
                queries = rotate_wide(queries, rotations.prefix, rotations.style)
            of_prefix = flash(queries, k[:, :, :first], v[:, :, :first], scale=scale)
            read = merged(read, of_prefix)
        parts.append(read)
    if layout.length > last:
        parts.append(flash_last(q[:, :, last:], k, v, scale=scale))
    return joined(parts)


def _documents_after(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rotations: CircleRotations | None,
    scale: float,
) -> Attended | None:
    """What the documents that are followed by others read from those; None where there is none."""
    first, total = layout.prefix_tokens, layout.document_tokens
    spans = [(start - first, end - first) for start, end in layout.documents if start < end]
    followed = [(start, end) for start, end in spans if end < total]
    if not followed:
        return None
    rows = q[:, :, : followed[-1][1]]
    if rotations is not None:
        rows = rotate_wide(rows, rotations.wrapped, rotations.style)
    return joined(
        [
            flash(rows[:, :, start:end], k[:, :, end:], v[:, :, end:], scale=scale)
            for start, end in followed
        ]
    )


@torch.no_grad()
def attend_by_document(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: PromptLayout,
    rotations: CircleRotations | None,
    rule: ScoreRule,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention `[r, h, n, dv]` of a whole prompt under any rule, keys moved for each document.

    Arguments are those of `attend_circle`, a rule with its soft-cap and window, and a learned extra
    score per head, `[h]`.
    """
    first, last, total = layout.prefix_tokens, layout.suffix_start, layout.document_tokens
    tokens = torch.arange(layout.length, device=q.device)

    def read(start: int, end: int, keys: Tensor, distances: Tensor) -> Tensor:
        hidden = distances < 0
        if rule.window is not None:
            hidden = hidden | (distances >= rule.window)
        values = v[:, :, : keys.shape[2]]
        return attend_in_chunks(
            q[:, :, start:end], keys, values, rule, lambda a, b: hidden[a:b], sinks=sinks
        )

    def in_order(start: int, end: int) -> Tensor:
        return read(start, end, k[:, :, :end], tokens[start:end, None] - tokens[:end])

    def back(keys: Tensor, tables: WideTables, row: int) -> Tensor:
        assert rotations is not None
        cos, sin = (table[row : row + 1] for table in tables)
        return rotate_wide(keys, WideTables(cos, -sin), rotations.style)

    parts = [in_order(0, first)] if first else []
    prefix, documents = k[:, :, :first], k[:, :, first:last]
    wrapped = documents if rotations is None else back(documents, rotations.wrapped, 0)
    for start, end in layout.documents:
        if start == end:
            continue
        before = prefix if rotations is None else back(prefix, rotations.prefix, start - first)
        # The prefix moved back, the documents up to its own, and those after, moved back too.
        keys = torch.cat((before, documents[:, :, : end - first], wrapped[:, :, end - first :]), 2)
        distances = circle_distances(first, total, start - first, end - first, q.device)
        parts.append(read(start, end, keys, distances))
    if layout.length > last:
        parts.append(in_order(last, layout.length))
    return torch.cat(parts, dim=2)


def circle_distances(
    prefix_tokens: int, document_tokens: int, start: int, end: int, device: torch.device
) -> Tensor:
    """How far each key stands before each query of one document, `[end - start, P + T]`.

    A key of its own document that follows the query has a negative distance: it is not seen.

    Args:
        prefix_tokens: ``P``.
        document_tokens: ``T``.
        start: of the document, counted from the first document token.
        end: of the document, likewise.
        device: where to put it.
    """
    query = torch.arange(start, end, device=device)[:, None]
    key = torch.arange(-prefix_tokens, document_tokens, device=device)[None, :]
    distance = query - key
    moved = torch.where(key < 0, document_tokens - end, 0)
    moved = torch.where(key >= end, document_tokens, moved)
    return distance + moved
