"""Position-invariant attention put together from fused attention calls, on a GPU in half precision.

The same mathematics as in `heads.py`, in other pieces. Moving a document's keys back is moving the
query on, so keys stay as they are cached, and a query is rotated once for every document; what it
reads from each is one text of a single call, and the log-sum-exp makes one softmax of them. The
importance of a document comes from log-sum-exps, too: those of un-rotated queries and keys, per
document. Queries, keys and values keep their dtype, and what is compared is summed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rag_middle.methods.pine.kernels.importance import document_shifts
from rag_middle.methods.pine.kernels.tables import PineTables
from rag_middle.ops.flash import (
    Attended,
    flash,
    flash_each,
    flash_last,
    flash_texts,
    joined,
    merged,
)
from rag_middle.ops.rope import WideTables, rotate_wide

#: Bytes of queries that are rotated at once, one copy of them for each document.
_ROTATED_BYTES = 2**28


def wide_base_rotate(x: Tensor, tables: PineTables, start: int = 0) -> Tensor:
    """`base_rotate` in the dtype of `x`, in fewer operations."""
    if not tables.rotates:
        return x
    where = slice(start, start + x.shape[-2])
    wide = tables.wide_base(x.dtype)
    return rotate_wide(x, WideTables(wide.cos[where], wide.sin[where]), tables.style)


@torch.no_grad()
def prefill_fused(
    q: Tensor, k: Tensor, rotated_keys: Tensor, v: Tensor, tables: PineTables, scale: float
) -> Attended:
    """Attention of a whole prompt; shapes as for `prefill` in `attend.py`.

    Args:
        q: un-rotated queries.
        k: un-rotated keys.
        rotated_keys: at base positions.
        v: values.
        tables: of the prompt.
        scale: factor on the scores.
    """
    layout = tables.layout
    first, last = layout.prefix_tokens, layout.suffix_start
    placed = wide_base_rotate(q, tables)
    parts = []
    if first:
        own = (x[:, :, :first] for x in (placed, rotated_keys, v))
        parts.append(flash(*own, scale=scale, causal=True))
    if last > first:
        query, key, value = (x[:, :, first:last] for x in (placed, rotated_keys, v))
        read = flash_each(
            query, key, value, layout.document_lengths, scale=scale, bounds=tables.bounds
        )
        if first:
            prefix = flash(query, rotated_keys[:, :, :first], v[:, :, :first], scale=scale)
            read = merged(read, prefix)
        if sum(length > 0 for length in layout.document_lengths) > 1:
            shifts = None
            if tables.rotates:
                plain_q, plain_k = (x[:, :, first:last] for x in (q, k))
                shifts = _document_shifts(plain_q, plain_k, value, tables, scale)
            read = _with_others(read, query, key, value, shifts, tables, scale)
        parts.append(read)
    if layout.length > last:
        document_keys = k[:, :, first:last]
        rows = slice(last, layout.length)
        parts.append(
            _later(q[:, :, rows], placed[:, :, rows], document_keys, rotated_keys, v, tables, scale)
        )
    return joined(parts)


@torch.no_grad()
def decode_fused(
    q: Tensor, keys: Tensor, values: Tensor, document_keys: Tensor, tables: PineTables, scale: float
) -> Attended:
    """Attention of generated tokens; as `decode` in `attend.py`."""
    placed = wide_base_rotate(q, tables, keys.shape[2] - q.shape[2])
    return _later(q, placed, document_keys, keys, values, tables, scale)


def _later(
    q: Tensor,
    placed: Tensor,
    document_keys: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: PineTables,
    scale: float,
) -> Attended:
    """The last `m` of `N` tokens, all behind the documents."""
    layout, m = tables.layout, q.shape[2]
    first, last = layout.prefix_tokens, layout.suffix_start
    if first == last or not tables.rotates:
        return flash_last(placed, keys, values, scale=scale)
    count, lengths = len(layout.documents), layout.document_lengths
    value = values[:, :, first:last]
    repeated = q[:, :, None].expand(-1, -1, count, -1, -1)
    _, lse = flash_texts(repeated, document_keys, value, lengths, tables.bounds, scale=scale)
    # Softmax over the tokens of all documents, averaged over each: [r, h, m, D].
    importance = lse.softmax(dim=2).transpose(2, 3) / tables.lengths.clamp(min=1)
    shifts = document_shifts(importance, tables.lengths, tables.ranking).transpose(
        2, 3
    )  # [r, h, D, m]
    turned = _moved_on(placed, shifts, tables)
    by_document = flash_texts(
        turned, keys[:, :, first:last], value, lengths, tables.bounds, scale=scale
    )
    if first and m == 1:
        # One call for what lies on both sides: a copy of a few keys costs less than a merge.
        rest = (torch.cat((x[:, :, :first], x[:, :, last:]), dim=2) for x in (keys, values))
        others = flash(placed, *rest, scale=scale)
    else:
        others = flash_last(placed, keys[:, :, last:], values[:, :, last:], scale=scale)
        if first:
            prefix = flash(placed, keys[:, :, :first], values[:, :, :first], scale=scale)
            others = merged(others, prefix)
    return _all_merged(by_document, others)


def _document_shifts(q: Tensor, k: Tensor, v: Tensor, tables: PineTables, scale: float) -> Tensor:
    """`[r, h, D, D]`: how far a key document moves back, per query document."""
    columns = []
    for start, end in tables.spans:
        if start < end:
            columns.append(flash(q, k[:, :, start:end], v[:, :, start:end], scale=scale).lse)
        else:
            columns.append(q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32))
    by_document = torch.stack(columns, dim=-1)  # [r, h, T, D]
    shares = by_document.masked_fill_(tables.own, -torch.inf).softmax(dim=-1)
    # A document's queries averaged, where the paper sums them: the order is the same.
    importance = torch.matmul(tables.means.T, shares) / tables.lengths.clamp(min=1)
    importance.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return document_shifts(importance, tables.lengths, tables.ranking)


def _with_others(
    read: Attended,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shifts: Tensor | None,
    tables: PineTables,
    scale: float,
) -> Attended:
    """What document tokens read, together with what they read from the other documents.

    Args:
        read: from the prefix and their own document.
        q: `[r, h, T, d]` at base positions.
        k: `[r, g, T, d]` likewise.
        v: `[r, g, T, dv]`.
        shifts: `[r, h, D, D]` of the key documents, per query document; None without rotation.
        tables: of the prompt.
        scale: factor on the scores.
    """
    by_row = None
    if shifts is not None:
        by_row = shifts.index_select(2, tables.document_of).transpose(2, 3)  # [r, h, D, T]
    lengths = tables.layout.document_lengths
    for start, end in _chunks(len(lengths), q):
        begin, stop = tables.spans[start][0], tables.spans[end - 1][1]
        queries = q[:, :, None].expand(-1, -1, end - start, -1, -1)
        if by_row is not None:
            queries = _moved_on(q, by_row[:, :, start:end], tables)
        bounds = None if tables.bounds is None else tables.bounds[start : end + 1] - begin
        part = flash_texts(
            queries, k[:, :, begin:stop], v[:, :, begin:stop], lengths[start:end], bounds,
            scale=scale,
        )  # fmt: skip
        part.lse.masked_fill_(tables.own[:, start:end].T, -torch.inf)
        read = _all_merged(part, read)
    return read


def _chunks(count: int, q: Tensor) -> Iterator[tuple[int, int]]:
    """Documents that are read from together."""
    step = max(1, _ROTATED_BYTES // max(1, q.numel() * q.element_size()))
    for start in range(0, count, step):
        yield start, min(count, start + step)


def _moved_on(placed: Tensor, shifts: Tensor, tables: PineTables) -> Tensor:
    """Queries `[r, h, m, d]` as documents moved back by `[r, h, c, m]` see them, one copy each."""
    cos, sin = tables.shift_pairs(placed.dtype)
    by = shifts.permute(0, 2, 3, 1)  # [r, c, m, h]: as texts end to end lie in memory
    x, style = placed.transpose(1, 2)[:, None], tables.style
    width, halves = 2 * style.pairs, style.pairing == "half"
    axis = -2 if halves else -1  # the two dimensions of a pair
    pairs = x[..., :width].unflatten(-1, (2, style.pairs) if halves else (style.pairs, 2))
    first, second = pairs.unbind(axis)
    partners = torch.stack((-second, first), dim=axis)
    # Angles are the largest tensors here: one for each pair, not for each dimension.
    turned = torch.addcmul(
        pairs * cos[by].unsqueeze(axis), partners, sin[by].unsqueeze(axis)
    ).flatten(-2)
    if width < x.shape[-1]:
        rest = x[..., width:].expand(*turned.shape[:-1], -1)
        turned = torch.cat((turned, rest), dim=-1)
    return turned.permute(0, 3, 1, 2, 4)


def _all_merged(several: Attended, other: Attended) -> Attended:
    """Attention `[r, h, c, m, dv]` of the same rows to `c` sets of keys, and to one more."""
    lse = torch.cat((several.lse, other.lse[:, :, None]), dim=2)  # [r, h, c + 1, m]
    total = lse.logsumexp(dim=2)
    shares = torch.exp(lse - total[:, :, None]).to(other.out.dtype)
    # One row of shares times c rows of outputs, for every query and head.
    outputs = several.out.permute(0, 3, 1, 2, 4)  # [r, m, h, c, dv], as the kernel left them
    weights = shares[:, :, :-1].permute(0, 3, 1, 2)
    mixed = torch.bmm(weights.flatten(0, 2)[:, None], outputs.flatten(0, 2))
    whole = mixed.view(*outputs.shape[:3], -1).transpose(1, 2)
    return Attended(torch.addcmul(whole, other.out, shares[:, :, -1, :, None]), total)
