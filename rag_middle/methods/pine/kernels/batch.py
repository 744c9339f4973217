"""Generated tokens of several prompts at a time, whose documents lie elsewhere in each.

`decode` in `attend.py` goes through one prompt document by document. Many small steps are
mostly the launching of operations; here every row of a left-padded batch takes each of them
together. A query is scored on all keys as every document wants it placed, and each key then keeps
the score that is its own: more dot products, a few operations for any number of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from rag_middle.layout import PromptLayout
from rag_middle.methods.pine.kernels.importance import document_means, document_shifts
from rag_middle.methods.pine.kernels.tables import PineTables
from rag_middle.ops.rope import rotate
from rag_middle.ops.scores import (
    ScoreRule,
    as_factor,
    products,
    row_chunks,
    scores_at_once,
    weighed,
)

#: Scores of columns that a row does not have: finite, so that a row without any stays a number.
_NEVER = torch.finfo(torch.float32).min


def worth_batching(
    layouts: Sequence[PromptLayout], heads: int, width: int, device: torch.device
) -> bool:
    """Whether one generated token's scores, one set for every document, are few enough.

    Args:
        layouts: one per row.
        heads: query heads.
        width: columns of the batch.
        device: where the layer computes.
    """
    copies = 1 + max(len(layout.documents) for layout in layouts)
    return len(layouts) * heads * copies * width <= scores_at_once(device)


class BatchColumns:
    """Where the documents of each row lie; the same for all layers.

    Args:
        layouts: one per row.
        paddings: columns before each row's prompt.
        device: where the layers compute.

    Attributes:
        spans: columns from the first to behind the last document token, by row.
        paddings: `[b]`.
        lengths: `[b, D]` tokens of the documents, 0 beyond a row's last.
        means: `[b, T, D]`, `document_means` of every row.
        absent: `[b, 1, T]`, document tokens that a row does not have.
        document_of: `[b, w]` index of the document of a column, ``D`` where it is of none.
        positions: `[b, w]` base positions of the columns.
    """

    def __init__(
        self, layouts: Sequence[PromptLayout], paddings: Sequence[int], device: torch.device
    ) -> None:
        rows, width = len(layouts), layouts[0].length + paddings[0]
        self.spans = [
            (padding + layout.prefix_tokens, padding + layout.suffix_start)
            for layout, padding in zip(layouts, paddings, strict=True)
        ]
        count = max(len(layout.documents) for layout in layouts)
        tokens = max(layout.document_tokens for layout in layouts)
        lengths = torch.zeros(rows, count, dtype=torch.long, device="cpu")
        means = torch.zeros(rows, tokens, count, dtype=torch.float32, device="cpu")
        absent = torch.ones(rows, 1, tokens, dtype=torch.bool, device="cpu")
        document_of = torch.full((rows, width), count, device="cpu")
        positions = (
            torch.arange(width, device="cpu").repeat(rows, 1)
            - torch.tensor(paddings, device="cpu")[:, None]
        )
        for row, (layout, padding) in enumerate(zip(layouts, paddings, strict=True)):
            documents, total = len(layout.documents), layout.document_tokens
            lengths[row, :documents] = torch.tensor(
                layout.document_lengths, dtype=torch.long, device="cpu"
            )
            means[row, :total, :documents] = document_means(layout.document_lengths)
            absent[row, :, :total] = False
            for index, (start, end) in enumerate(layout.documents):
                document_of[row, padding + start : padding + end] = index
                positions[row, padding + start : padding + end] += layout.suffix_start - end
        self.paddings = torch.tensor(paddings, device=device)
        self.lengths, self.means = lengths.to(device), means.to(device)
        self.absent, self.document_of = absent.to(device), document_of.to(device)
        self.positions = positions.to(device)

    def documents_of(self, k: Tensor) -> Tensor:
        """The document tokens `[b, g, T, d]` of `[b, g, w, d]`, zero where a row has fewer."""
        out = k.new_zeros(*k.shape[:2], self.means.shape[1], k.shape[3])
        for row, (start, end) in enumerate(self.spans):
            out[row, :, : end - start] = k[row, :, start:end]
        return out

    def generated_positions(self, start: int, stop: int) -> Tensor:
        """Positions `[b, stop - start]` of columns after the prompts."""
        columns = torch.arange(start, stop, device=self.paddings.device)
        return columns - self.paddings[:, None]


def rotate_generated(x: Tensor, tables: PineTables, positions: Tensor) -> Tensor:
    """Rotate queries or keys of generated tokens.

    Args:
        x: `[b, h, m, d]` un-rotated.
        tables: without documents, so that they are in the order of positions.
        positions: `[b, m]`.

    Returns:
        A tensor of the shape and dtype of `x`; `x` itself in a layer without rotary embedding.
    """
    if not tables.rotates:
        return x
    cos, sin = (table[positions][:, None] for table in (tables.base_cos, tables.base_sin))
    return rotate(x, cos, sin, tables.style)


@torch.no_grad()
def decode_batch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    document_keys: Tensor,
    tables: PineTables,
    columns: BatchColumns,
    rule: ScoreRule,
    *,
    need_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of generated tokens, as `decode` in `attend.py` for every row.

    Args:
        q: `[b, h, m, d]` un-rotated queries of the last `m` of `n` columns, all generated.
        keys: `[b, g, n, d]` of left-padded prompts and generated text, at base positions.
        values: `[b, g, n, dv]`.
        document_keys: `[b, g, T, d]` un-rotated, from `BatchColumns.documents_of`.
        tables: without documents, see `rotate_generated`.
        columns: of the batch.
        rule: from dot products to scores.
        need_lse: also return the log-sum-exp.

    Returns:
        `[b, h, m, dv]` in the queries' dtype, and `[b, h, m]` float32 log-sum-exp of the scores, or
        None where not asked for.
    """
    step = _Step(q, keys, values, document_keys, tables, columns, rule, need_lse)
    b, h, m, _ = q.shape
    copies = columns.lengths.shape[1] + 1
    chunks = row_chunks(0, m, b * h * copies * keys.shape[2], scores_at_once(q.device))
    outputs, sums = zip(*(step.attend(first, last) for first, last in chunks), strict=True)
    lse = torch.cat([total for total in sums if total is not None], dim=2) if need_lse else None
    return torch.cat(outputs, dim=2).to(q.dtype), lse


class _Step:
    """Inputs of one call. Scores are float32; queries, keys and values as the device takes them."""

    def __init__(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        document_keys: Tensor,
        tables: PineTables,
        columns: BatchColumns,
        rule: ScoreRule,
        need_lse: bool,
    ) -> None:
        self.need_lse = need_lse
        self.q = as_factor(q)
        self.keys = as_factor(keys).flatten(0, 1)  # [b * g, n, d]
        self.values = values.flatten(0, 1)  # [b * g, n, dv]
        self.document_keys = as_factor(document_keys).flatten(0, 1)
        self.tables, self.columns, self.rule = tables, columns, rule
        self.stop = keys.shape[2]
        self.start = self.stop - q.shape[2]
        width = columns.document_of.shape[1]
        count = columns.lengths.shape[1]
        self.document_of = pad(columns.document_of, (0, self.stop - width), value=count)
        self.queries = columns.generated_positions(self.start, self.stop)  # [b, m]
        self.ranks = count > 0 and (tables.rotates or rule.window is not None)

    def attend(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        """Output `[b, h, c, dv]` and log-sum-exp `[b, h, c]` of some of the queries."""
        q = self.q[:, :, first:last]
        b, h, c, _ = q.shape
        placed = rotate_generated(q, self.tables, self.queries[:, first:last])
        shifts = self._shifts(q) if self.ranks else None  # [b, h, c, D]
        if shifts is not None and self.tables.rotates:
            scores = self._scores_by_document(placed, shifts)
        else:
            scores = self._products(placed, self.keys).view(b, h, c, -1)
        scores = self.rule.cap_(scores)
        scores.masked_fill_(self._unseen(first, last, shifts), -torch.inf)
        weights = scores.softmax(dim=-1)
        out = weighed(weights.view(self.values.shape[0], -1, self.stop), self.values)
        return out.view(b, h, c, -1), scores.logsumexp(dim=-1) if self.need_lse else None

    def _shifts(self, q: Tensor) -> Tensor:
        b, h, c, _ = q.shape
        scores = self.rule.cap_(self._products(q, self.document_keys)).view(b, h * c, -1)
        shares = scores.masked_fill_(self.columns.absent, _NEVER).softmax(dim=-1)
        importance = torch.bmm(shares, self.columns.means).view(b, h, c, -1)
        return document_shifts(importance, self.columns.lengths[:, None, None], self.tables.ranking)

    def _scores_by_document(self, placed: Tensor, shifts: Tensor) -> Tensor:
        """Scores `[b, h, c, n]` of queries that see documents moved back by `[b, h, c, D]`."""
        tables, (b, h, c, _) = self.tables, placed.shape
        placed_queries = placed[:, :, :, None]
        moved = rotate(
            placed_queries.expand(*shifts.shape, -1),
            tables.shift_cos[shifts],
            tables.shift_sin[shifts],
            tables.style,
        )
        queries = torch.cat((moved, placed_queries), dim=3)  # [b, h, c, D + 1, d]
        scores = self._products(queries, self.keys).view(b, h, c, -1, self.stop)
        own = self.document_of[:, None, None, None].expand(-1, h, c, -1, -1)
        return scores.gather(3, own)[:, :, :, 0]

    def _products(self, q: Tensor, keys: Tensor) -> Tensor:
        """Scaled dot products of `[b, h, ..., d]` and `[b * g, n, d]`."""
        return products(q.reshape(keys.shape[0], -1, q.shape[-1]), keys).mul_(self.rule.scale)

    def _unseen(self, first: int, last: int, shifts: Tensor | None) -> Tensor:
        """Columns that the queries do not see: padding, later ones, and those too far away."""
        b = self.queries.shape[0]
        index = torch.arange(self.stop, device=self.queries.device)
        unseen = (index < self.columns.paddings[:, None])[:, None, None]
        if self.stop - self.start > 1:
            unseen = unseen | (index > index[self.start + first : self.start + last, None])
        if self.rule.window is None:
            return unseen
        generated = self.columns.generated_positions(self.columns.positions.shape[1], self.stop)
        keys = torch.cat((self.columns.positions, generated), dim=1)[:, None, None]
        if shifts is not None:
            by = pad(shifts, (0, 1))
            own = self.document_of[:, None, None].expand(b, *shifts.shape[1:3], -1)
            keys = keys - by.gather(3, own)
        far = self.queries[:, None, first:last, None] - keys >= self.rule.window
        return unseen | far
