"""Attention to documents in a circle, as a Triton kernel.

Keys stay as the model rotated them. What moves back by some positions is read by queries that are
moved on by as many: a tile of queries is rotated once for the prefix, and once for the documents
after its own.
"""

import triton
import triton.language as tl

from rag_middle.ops.triton_tiles import load_head, lse_of, read_keys, turned


@triton.jit
def attend_circle(
    q, k, v, cos, sin, rows, tiles, out, lse,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    stride_vb, stride_vg, stride_vn, stride_ob, stride_on, stride_oh, stride_lb, stride_lh,
    count, stop, scale, softcap, window,
    ROTATES: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SHARE: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
    DV: tl.constexpr, DV_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """All rows of whole prompts: `out` `[b, n, h, dv]`, `lse` `[b, h, n]`.

    Queries and keys are rotated as in the prompt. One program: a tile of queries of one head, and
    of one document, of the prefix (document -1) or of what is after the documents (document
    `count`), as `tiles` `[_, 3]` lists them: row, document, first column. Prompts end at `stop`.
    """
    tile = tiles + 3 * tl.program_id(0)
    row, own, first = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    head = tl.program_id(1)
    bounds = rows + row * (count + 2) + 1
    padding, texts, last = tl.load(bounds - 1), tl.load(bounds), tl.load(bounds + count)
    in_document = (own >= 0) & (own < count)
    end = tl.where(own < count, tl.load(bounds + tl.minimum(own + 1, count)), stop)
    query = first + tl.arange(0, BM)
    live = query < end
    pair = tl.arange(0, R_PAD)
    if ROTATES:
        # Tables of yarn-like variants bear a factor, which queries have already.
        factor = tl.load(cos + pair, mask=pair < R, other=1.0)
    q += row * stride_qb + head * stride_qh
    k += row * stride_kb + (head // SHARE) * stride_kg
    v += row * stride_vb + (head // SHARE) * stride_vg
    acc = tl.zeros([BM, DV_PAD], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    # A document's rows read the prefix, the documents after it, and all from the first document
    # up to the query; other rows everything up to the query. Every part is one run of columns.
    for part in range(tl.where(in_document, 0, 2), 3):
        begin, its_end, shift = padding, texts, last - end
        limit = tl.where(live, texts, 0)
        if part == 1:
            begin, its_end, shift = end, last, last - texts
            limit = tl.where(live, last, 0)
        elif part == 2:
            begin, its_end, shift = padding, tl.minimum(end, first + BM), 0
            if in_document:
                begin = texts
            limit = tl.where(live, query + 1, 0)
        if WINDOW:  # what no query of the tile sees
            begin = tl.maximum(begin, first + shift - window + 1)
        # Loaded again for each part: registers are scarcer than traffic with the nearest cache.
        q1, q2, q3 = load_head(q, stride_qn, query, live, D, R, STEP, SECOND, R_PAD, REST_PAD)
        if ROTATES:
            by_cos = tl.load(cos + shift * R + pair, mask=pair < R, other=0.0) / factor
            by_sin = tl.load(sin + shift * R + pair, mask=pair < R, other=0.0) / factor
            q1, q2 = turned(q1, q2, by_cos[None, :], by_sin[None, :])
        acc, top, total = read_keys(
            acc, top, total, q1, q2, q3, k, v, stride_kn, stride_vn, begin, its_end, limit,
            query + shift, scale, softcap, window, SOFTCAP, WINDOW,
            D, R, STEP, SECOND, R_PAD, REST_PAD, DV, DV_PAD, BN,
        )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    dim = tl.arange(0, DV_PAD)
    to = out + row * stride_ob + head * stride_oh + query[:, None] * stride_on + dim[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & (dim < DV)[None, :])
    tl.store(lse + row * stride_lb + head * stride_lh + query, lse_of(top, total), mask=live)
