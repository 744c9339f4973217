"""Attention with re-assigned positions, as Triton kernels.

Keys stay as they are cached, at base positions. A document that is moved back by some positions is
read by queries that are moved on by as many: a tile of queries is rotated once for each document.
"""

import triton
import triton.language as tl

from rag_middle.ops.triton_tiles import load_angles, load_head, lse_of, read_keys, turned


@triton.jit
def rotate_both(
    q, k, placed, rotated, cos, sin, rows,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    stride_pb, stride_ph, stride_pn, stride_rb, stride_rg, stride_rn, heads, start, stop, count,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Queries and keys of columns `start..stop` at base positions; zero in padding.

    One program: a tile of columns of one head, query heads first, then key heads.
    """
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    bounds = rows + row * (count + 2) + 1
    padding, last = tl.load(bounds - 1), tl.load(bounds + count)
    column = start + tl.program_id(0) * BN + tl.arange(0, BN)
    inside = column < stop
    live = (column >= padding) & inside
    position = column - padding
    for document in range(0, count):
        begin, end = tl.load(bounds + document), tl.load(bounds + document + 1)
        position += tl.where((column >= begin) & (column < end), last - end, 0)
    c, s = load_angles(cos, sin, position, live, R, R_PAD)
    if head < heads:
        x, stride_x = q + row * stride_qb + head * stride_qh, stride_qn
        out, stride_out = placed + row * stride_pb + head * stride_ph, stride_pn
    else:
        x, stride_x = k + row * stride_kb + (head - heads) * stride_kg, stride_kn
        out, stride_out = rotated + row * stride_rb + (head - heads) * stride_rg, stride_rn
    x1, x2, x3 = load_head(x, stride_x, column - start, live, D, R, STEP, SECOND, R_PAD, REST_PAD)
    x1, x2 = turned(x1, x2, c, s)
    pair, dim = tl.arange(0, R_PAD), 2 * R + tl.arange(0, REST_PAD)
    to = out + (column - start)[:, None] * stride_out
    pairs = inside[:, None] & (pair < R)[None, :]
    tl.store(to + STEP * pair[None, :], x1, mask=pairs)
    tl.store(to + STEP * pair[None, :] + SECOND, x2, mask=pairs)
    if D > 2 * R:
        tl.store(to + dim[None, :], x3, mask=inside[:, None] & (dim < D)[None, :])


@triton.jit
def attend_documents(
    q, k, v, cos, sin, rows, tiles, shifts, out, lse,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    stride_vb, stride_vg, stride_vn, stride_ob, stride_on, stride_oh, stride_lb, stride_lh,
    heads, count, units, scale, softcap, window,
    ROTATES: tl.constexpr, RANKS: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    SHARE: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
    DV: tl.constexpr, DV_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows of the documents and of what is before them: `out` `[b, n, h, dv]`, `lse` `[b, h, n]`.

    Queries are at base positions. One program: a tile of them, of one document (or of the prefix,
    document -1) and head, as `tiles` `[_, 3]` lists them: row, document, first column.
    """
    tile = tiles + 3 * tl.program_id(0)
    row, own, first = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    head = tl.program_id(1)
    bounds = rows + row * (count + 2) + 1
    padding, last = tl.load(bounds - 1), tl.load(bounds + count)
    in_prefix = own < 0
    begin = tl.where(in_prefix, padding, tl.load(bounds + tl.maximum(own, 0)))
    end = tl.load(bounds + own + 1)
    back = tl.where(in_prefix, 0, last - end)
    query = first + tl.arange(0, BM)
    live = query < end
    position = query - padding + back
    # Tables of yarn-like variants bear a factor, which a second rotation must not apply again.
    pair = tl.arange(0, R_PAD)
    if ROTATES:
        factor = tl.load(cos + pair, mask=pair < R, other=1.0)
    q += row * stride_qb + head * stride_qh
    k += row * stride_kb + (head // SHARE) * stride_kg
    v += row * stride_vb + (head // SHARE) * stride_vg
    acc = tl.zeros([BM, DV_PAD], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    shifts += ((row * heads + head) * units + own) * count
    # Of the prefix and the other documents all keys, and last of its own those up to the query.
    for part in range(tl.where(in_prefix, count + 1, 0), count + 2):
        its_begin = tl.where(part == 0, padding, tl.load(bounds + tl.maximum(part - 1, 0)))
        its_end = tl.load(bounds + tl.minimum(part, count))
        its_back = tl.where(part == 0, 0, last - its_end)
        limit = tl.where(live, its_end, 0)
        if part == count + 1:
            its_begin, its_end, its_back = begin, tl.minimum(end, first + BM), back
            limit = tl.where(live, query + 1, 0)
        elif part == own + 1:
            its_end = its_begin
        shift = 0
        if RANKS:
            ranked = (part > 0) & (part <= count)
            shift = tl.load(shifts + part - 1, mask=ranked, other=0)
        # Loaded again for each part: registers are scarcer than traffic with the nearest cache.
        q1, q2, q3 = load_head(q, stride_qn, query, live, D, R, STEP, SECOND, R_PAD, REST_PAD)
        if RANKS and ROTATES:
            by_cos = tl.load(cos + shift * R + pair, mask=pair < R, other=0.0) / factor
            by_sin = tl.load(sin + shift * R + pair, mask=pair < R, other=0.0) / factor
            q1, q2 = turned(q1, q2, by_cos[None, :], by_sin[None, :])
        acc, top, total = read_keys(
            acc, top, total, q1, q2, q3, k, v, stride_kn, stride_vn, its_begin, its_end, limit,
            position + shift + padding - its_back, scale, softcap, window, SOFTCAP, WINDOW,
            D, R, STEP, SECOND, R_PAD, REST_PAD, DV, DV_PAD, BN,
        )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    dim = tl.arange(0, DV_PAD)
    to = out + row * stride_ob + head * stride_oh + query[:, None] * stride_on + dim[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & (dim < DV)[None, :])
    tl.store(lse + row * stride_lb + head * stride_lh + query, lse_of(top, total), mask=live)


@triton.jit
def attend_later(
    q, k, v, cos, sin, rows, shifts, parts, sums,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    stride_vb, stride_vg, stride_vn,
    heads, start, stop, tokens, count, units, first_unit, splits, scale, softcap, window,
    ROTATES: tl.constexpr, RANKS: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    SHARE: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
    DV: tl.constexpr, DV_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows after the documents, each with its own ranking, on one of `splits` parts of the keys.

    Queries are at base positions.
    `parts` `[splits, b, h, tokens, dv]` and `sums` `[splits, b, h, tokens]`, float32. One program:
    a tile of the rows of one key head, tokens times the query heads that share it, and one part.
    """
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    group, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    bounds = rows + row * (count + 2) + 1
    padding, last = tl.load(bounds - 1), tl.load(bounds + count)
    packed = tile * BM + tl.arange(0, BM)
    token, head = packed // SHARE, group * SHARE + packed % SHARE
    query = tl.maximum(start, last) + token
    live = query < stop
    position = query - padding
    at_query = head * stride_qh + (query - start) * stride_qn
    if ROTATES:
        pair = tl.arange(0, R_PAD)
        factor = tl.load(cos + pair, mask=pair < R, other=1.0)
    k += row * stride_kb + group * stride_kg
    v += row * stride_vb + group * stride_vg
    width = tl.cdiv(stop - padding, splits)
    low = padding + split * width
    high = tl.minimum(low + width, stop)
    acc = tl.zeros([BM, DV_PAD], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    shifts += ((row * heads + head) * units + first_unit + token) * count
    for part in range(0, count + 2):
        end = tl.where(part > count, stop, tl.load(bounds + tl.minimum(part, count)))
        begin = tl.where(part == 0, padding, tl.load(bounds + tl.maximum(part - 1, 0)))
        its_begin, its_end = tl.maximum(low, begin), tl.minimum(high, end)
        if its_begin < its_end:
            ranked = (part > 0) & (part <= count)
            reach = position + padding - tl.where(ranked, last - end, 0)
            q1, q2, q3 = load_head(
                q + row * stride_qb, 1, at_query, live, D, R, STEP, SECOND, R_PAD, REST_PAD
            )
            if RANKS:
                shift = tl.load(shifts + part - 1, mask=live & ranked, other=0)
                reach += shift
                if ROTATES:
                    by_cos, by_sin = load_angles(cos, sin, shift, live, R, R_PAD)
                    q1, q2 = turned(q1, q2, by_cos / factor[None, :], by_sin / factor[None, :])
            acc, top, total = read_keys(
                acc, top, total, q1, q2, q3, k, v, stride_kn, stride_vn, its_begin, its_end,
                tl.minimum(query + 1, its_end), reach, scale, softcap, window, SOFTCAP, WINDOW,
                D, R, STEP, SECOND, R_PAD, REST_PAD, DV, DV_PAD, BN,
            )  # fmt: skip
    acc /= tl.where(total > 0, total, 1.0)[:, None]
    dim = tl.arange(0, DV_PAD)
    at = ((split * tl.num_programs(2) + row) * heads + head) * tokens + token
    mask = live[:, None] & (dim < DV)[None, :]
    tl.store(parts + at[:, None] * DV + dim[None, :], acc, mask=mask)
    tl.store(sums + at, lse_of(top, total), mask=live)


@triton.jit
def merge_parts(
    parts, sums, rows, out, lse,
    stride_ob, stride_on, stride_oh, stride_lb, stride_lh, start, stop, tokens, count, splits,
    DV: tl.constexpr, DV_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
):  # fmt: skip
    """What one token and head read from all parts of the keys."""
    token, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.maximum(start, tl.load(rows + row * (count + 2) + 1 + count)) + token
    if column >= stop:  # of a row with fewer tokens
        return
    split, dim = tl.arange(0, SPLITS_PAD), tl.arange(0, DV_PAD)
    heads, batch = tl.num_programs(1), tl.num_programs(2)
    at = ((split * batch + row) * heads + head) * tokens + token
    there = split < splits
    logs = tl.load(sums + at, mask=there, other=float("-inf"))
    top = tl.max(logs, 0)
    shares = tl.exp(logs - tl.where(top == float("-inf"), 0.0, top))
    whole = tl.sum(shares, 0)
    mask = there[:, None] & (dim < DV)[None, :]
    part = tl.load(parts + at[:, None] * DV + dim[None, :], mask=mask, other=0.0)
    mixed = tl.sum(part * shares[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    to = out + row * stride_ob + (column - start) * stride_on + head * stride_oh + dim
    tl.store(to, mixed.to(out.dtype.element_ty), mask=dim < DV)
    tl.store(lse + row * stride_lb + head * stride_lh + column - start, top + tl.log(whole))
