"""Which document is how important to whom, as Triton kernels: log-sum-exps, then ranks.

No query's scores are kept. A query's share of a document is the exponential of the document's
log-sum-exp over that of all documents, so one number for each query and document is enough.
"""

import triton
import triton.language as tl

from rag_middle.ops.triton_tiles import (
    load_angles,
    load_head,
    lse_of,
    scores_of,
    softmax_step,
    turned,
)


@triton.jit
def document_lse(
    q, k, cos, sin, rows, out,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    heads, start, stop, tokens, count, chunks, scale, softcap,
    UNROTATE: tl.constexpr, SOFTCAP: tl.constexpr, SHARE: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """`out` `[b, h, tokens, count]`: log-sum-exp of un-rotated scores on each document's keys.

    One program: a tile of the rows of one key head (tokens from the first document on times the
    query heads that share the keys), and one of `chunks` parts of the documents. Column `start` is
    the first of `q`. `UNROTATE`: the keys are those of the cache, at base positions.
    """
    tile, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    group, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    bounds = rows + row * (count + 2) + 1
    padding, last = tl.load(bounds - 1), tl.load(bounds + count)
    first = tl.maximum(start, tl.load(bounds))
    packed = tile * BM + tl.arange(0, BM)
    token, head = packed // SHARE, group * SHARE + packed % SHARE
    query = first + token
    live = query < stop
    at_query = head * stride_qh + (query - start) * stride_qn
    q1, q2, q3 = load_head(
        q + row * stride_qb, 1, at_query, live, D, R, STEP, SECOND, R_PAD, REST_PAD
    )
    keys = k + row * stride_kb + group * stride_kg
    if UNROTATE:
        # Tables of yarn-like variants bear a factor, which the keys have and un-rotated ones not.
        pair = tl.arange(0, R_PAD)
        factor = tl.load(cos + pair, mask=pair < R, other=1.0)
        undo = 1.0 / (factor * factor)
    per_chunk = tl.cdiv(count, chunks)
    for document in range(chunk * per_chunk, tl.minimum(count, (chunk + 1) * per_chunk)):
        begin, end = tl.load(bounds + document), tl.load(bounds + document + 1)
        top = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
        for at in range(begin, end, BN):
            column = at + tl.arange(0, BN)
            there = column < end
            k1, k2, k3 = load_head(
                keys, stride_kn, column, there, D, R, STEP, SECOND, R_PAD, REST_PAD
            )
            if UNROTATE:
                c, s = load_angles(cos, sin, column - padding + last - end, there, R, R_PAD)
                k1, k2 = turned(k1, k2, c * undo[None, :], -s * undo[None, :])
            scores = scores_of(q1, q2, q3, k1, k2, k3, scale, softcap, SOFTCAP, D > 2 * R)
            scores = tl.where(there[None, :], scores, float("-inf"))
            _, _, top, total = softmax_step(scores, top, total)
        at_row = ((row * heads + head) * tokens + token) * count + document
        tl.store(out + at_row, lse_of(top, total), mask=live)


@triton.jit
def rank(
    lse, rows, shifts, heads, start, stop, tokens, count, units, first_unit,
    COUNT_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`shifts` `[b, h, units, count]`: by how much each document moves away from a unit's queries.

    A unit is what ranks together: the tokens of a document, which is nearest to itself, or one
    later token. Units count from the first document, `first_unit` being the first one asked for.
    """
    unit = tl.program_id(0) + first_unit
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    bounds = rows + row * (count + 2) + 1
    first = tl.maximum(start, tl.load(bounds))
    later = tl.maximum(start, tl.load(bounds + count)) + unit - count
    if unit < count:
        own, begin, end = unit, tl.load(bounds + unit), tl.load(bounds + unit + 1)
    else:
        own, begin, end = count, later, tl.minimum(later + 1, stop)
    index = tl.arange(0, COUNT_PAD)
    there = index < count
    lengths = tl.load(bounds + index + 1, mask=there, other=0)
    lengths -= tl.load(bounds + index, mask=there, other=0)
    lse += (row * heads + head) * tokens * count
    received = tl.zeros([COUNT_PAD], tl.float32)
    for at in range(begin - first, end - first, ROWS):
        token = at + tl.arange(0, ROWS)
        mask = (token < end - first)[:, None] & (there & (index != own))[None, :]
        sums = tl.load(
            lse + token[:, None] * count + index[None, :], mask=mask, other=float("-inf")
        )
        top = tl.max(sums, 1)
        shares = tl.exp(sums - tl.where(top == float("-inf"), 0.0, top)[:, None])
        whole = tl.sum(shares, 1)
        received += tl.sum(shares / tl.where(whole > 0, whole, 1.0)[:, None], 0)
    importance = received / tl.maximum(lengths, 1).to(tl.float32)
    importance = tl.where(index == own, float("inf"), importance)
    moved = tl.zeros([COUNT_PAD], tl.int32)
    for other in range(0, count):
        its_importance = tl.sum(tl.where(index == other, importance, 0.0), 0)
        its_length = tl.sum(tl.where(index == other, lengths, 0), 0)
        tied_before = (its_importance == importance) & (other < index)
        moved += tl.where((its_importance > importance) | tied_before, its_length, 0)
    at_unit = ((row * heads + head) * units + unit - first_unit) * count
    tl.store(shifts + at_unit + index, moved, mask=there)
