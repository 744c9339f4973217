"""Attention of a generated token to spans of its keys, each read in a way of its own.

`attend_spans` is a custom operator with a fake, so fake tensors, compilers and counters see it
without Triton, which is imported at the first launch. The kernels are in `triton_spans.py`: a batch
of prompts of different layouts in two launches, where PyTorch's operators take several per layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.ops.flash import Attended
from rag_middle.ops.kernels import KernelCase, KernelCheck, uses_triton
from rag_middle.ops.prompt_kernels import rows_in_one_piece, splits_of_keys, tile_sizes
from rag_middle.options import Kernels


class Span(NamedTuple):
    """Columns of a cache that a token reads alike.

    Attributes:
        begin: first column; negative: from the end; -1 is one past the last column.
        end: one past its last column, likewise.
        scale: factor on the scores.
        exponent: the sum of the exponentials of the scores is raised to this power.
        log_weight: logarithm of the factor on what comes out.
        least: columns before it are not read, wherever the span begins.
        far: whether the second rotation of query and keys scores it.
    """

    begin: int
    end: int
    scale: float
    exponent: float = 1.0
    log_weight: float = 0.0
    least: int = 0
    far: bool = False


class SpanTables(NamedTuple):
    """Spans of every row of a batch, on the device.

    Attributes:
        spans: `[b, S, 4]` int32, begin, end, least and far.
        rules: `[b, S, 3]` float32, scale, exponent and log-weight.
    """

    spans: Tensor
    rules: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[Span]], device: torch.device) -> SpanTables:
        """Of spans per row, as many in each; together they are all that a row reads."""
        spans = [[(s.begin, s.end, s.least, s.far) for s in row] for row in rows]
        rules = [[(s.scale, s.exponent, s.log_weight) for s in row] for row in rows]
        return cls(
            torch.tensor(spans, dtype=torch.int32, device="cpu").to(device),
            torch.tensor(rules, dtype=torch.float32, device="cpu").to(device),
        )


def reads_spans(
    kernels: Kernels, query: Tensor, key: Tensor, value: Tensor, unknown: Mapping[str, bool]
) -> bool:
    """Whether `attend_spans` reads for queries `[b, h, m, d]`.

    Args:
        kernels: what was asked for.
        query: one token's, or it does not.
        key: as for `attend_spans`.
        value: `[b, g, n, dv]`.
        unknown: what the method's spans cannot say, and whether it is asked for.

    Raises:
        ConfigError: Triton kernels were asked for and cannot run here.
    """
    if query.shape[2] != 1:
        return False
    obstacle = next(
        (f"the method's kernels know no {name}" for name, asked in unknown.items() if asked), None
    )
    return uses_triton(kernels, query, key, value, CHECK, obstacle=obstacle)


def attend_spans(
    q: Tensor, k: Tensor, v: Tensor, tables: SpanTables, far: Tensor | None = None
) -> Attended:
    """What one token per row reads, `[b, h, 1, dv]`, and its log-sum-exp.

    Args:
        q: `[b, h, 1, d]`.
        k: `[b, g, n, d]`; query head `i` uses head `i // (h/g)`. With `far`, `[b, g, n, 2d]`: keys
            in both rotations, side by side.
        v: `[b, g, n, dv]`.
        tables: of the batch.
        far: `q` in the second rotation.
    """
    out, lse = torch.ops.rag_middle.attend_spans(q, q if far is None else far, k, v, *tables)
    return Attended(out, lse)


@torch.library.custom_op("rag_middle::attend_spans", mutates_args=())
def _attend_spans(
    q: Tensor, far: Tensor, k: Tensor, v: Tensor, spans: Tensor, rules: Tensor
) -> tuple[Tensor, Tensor]:
    from triton import next_power_of_2

    from rag_middle.ops import triton_spans

    q, far, k, v = map(rows_in_one_piece, (q, far, k, v))
    (b, h, _, d), (g, n), dv, count = q.shape, k.shape[1:3], v.shape[-1], spans.shape[1]
    out, lse = _empty(q, v)
    tiles = tile_sizes(max(d, dv), later=True)
    row_tiles = -(-(h // g) // tiles.rows)
    splits = splits_of_keys(row_tiles * g * b, n)
    parts = q.new_empty(count, splits, b, h, dv, dtype=torch.float32)
    sums = parts.new_empty(parts.shape[:-1])
    width = max(16, next_power_of_2(dv))
    with torch.cuda.device_of(q):
        triton_spans.attend_spans[(row_tiles * splits, g, b)](
            q, far, k, v, spans, rules, parts, sums, *q.stride()[:2], *far.stride()[:2],
            *k.stride()[:3], *v.stride()[:3], h, n, splits, SPANS=count, SHARE=h // g,
            D=d, D_PAD=max(16, next_power_of_2(d)), DV=dv, DV_PAD=width, **tiles.arguments,
        )  # fmt: skip
        triton_spans.merge_spans[(h, b)](
            parts, sums, rules, out, lse, *out.stride()[:2], *lse.stride()[:2], splits,
            SPANS=count, DV=dv, DV_PAD=width, SPLITS_PAD=next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
    return out, lse


def _empty(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the output `[b, h, 1, dv]` and its log-sum-exp `[b, h, 1]`."""
    b, h = q.shape[:2]
    return q.new_empty(b, h, 1, v.shape[-1]), q.new_empty(b, h, 1, dtype=torch.float32)


@_attend_spans.register_fake
def _(q: Tensor, _far: Tensor, _k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return _empty(q, v)


def _pairs(case: KernelCase) -> Iterator[tuple[Tensor, Tensor]]:
    """Of two rows, the second one padded, with the second rotation for what is far."""
    scale, heads, n = case.d**-0.5, 2 * case.share, 200
    sharp = Span(5, 130, 1.1 * scale, exponent=0.8, log_weight=-0.7, far=True)
    distant = Span(0, -41, scale, least=90, far=True)
    rows = [
        [Span(0, 5, scale), sharp, Span(130, -1, scale)],
        [Span(90, 90, scale), distant, Span(-41, -1, scale)],
    ]
    of_token, of_keys = case.draw(1, *[(heads, case.d)] * 2), case.draw(n, (2, 2 * case.d))
    values = case.draw(n, (2, case.dv))
    (q, far, k, v), wide = case.inputs(*of_token, *of_keys, *values)
    read = attend_spans(q, k, v, SpanTables.of(rows, case.device), far)
    for row, its in enumerate(rows):
        logits: list[Tensor] = []
        seen: list[int] = []
        queries, second, keys, of_columns = (x[row] for x in wide)
        for span in its:
            begin, end = (x + n + 1 if x < 0 else x for x in (span.begin, span.end))
            seen += range(max(begin, span.least), end)
            inside = keys[:, max(begin, span.least) : end, span.far * case.d :][..., : case.d]
            query = (second if span.far else queries).unflatten(0, (2, -1))[..., 0, :]
            scores = span.scale * query @ inside.transpose(1, 2)
            whole = scores.logsumexp(-1, keepdim=True)
            logits.append(scores - whole + whole * span.exponent + span.log_weight)
        every = torch.cat(logits, dim=-1)
        yield read.out[row, :, 0], (every.softmax(-1) @ of_columns[:, seen]).flatten(0, 1)
        yield read.lse[row].exp(), every.logsumexp(-1).view(-1, 1).exp()


CHECK = KernelCheck("attention to spans of keys", _pairs)
