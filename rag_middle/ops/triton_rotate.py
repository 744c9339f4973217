"""Rotation of queries and keys by tables of their heads' choice, as a Triton kernel."""

import triton
import triton.language as tl

from rag_middle.ops.triton_tiles import load_head, turned


@triton.jit
def rotate_heads(
    q, k, cos, sin, choice, out_q, out_k,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kg, stride_kn,
    stride_pb, stride_ph, stride_pn, stride_rb, stride_rg, stride_rn,
    stride_t, stride_tb, stride_tn, stride_cb, stride_cc, n,
    H: tl.constexpr, COPIES: tl.constexpr, BM: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
):  # fmt: skip
    """One program: `BM` tokens of one of the `H` query heads or of the key heads behind them.

    Tables `[tables, b, n, 2R]` hold the cosine of pair `i` at its first dimension, and the sine at
    its second. `choice` `[b, COPIES, heads]` says which of them a head takes for each copy, which
    lie side by side.
    """
    row, head = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    token = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    live = token < n
    if head < H:
        x, stride = q + row * stride_qb + head * stride_qh, stride_qn
        to, step = out_q + row * stride_pb + head * stride_ph, stride_pn
    else:
        x, stride = k + row * stride_kb + (head - H) * stride_kg, stride_kn
        to, step = out_k + row * stride_rb + (head - H) * stride_rg, stride_rn
    first, second, rest = load_head(x, stride, token, live, D, R, STEP, SECOND, R_PAD, REST_PAD)
    pair = tl.arange(0, R_PAD)
    mask = live[:, None] & (pair < R)[None, :]
    dim = 2 * R + tl.arange(0, REST_PAD)
    inside = live[:, None] & (dim < D)[None, :]
    for copy in tl.static_range(COPIES):
        table = tl.load(choice + row * stride_cb + copy * stride_cc + head) * stride_t
        at = table + row * stride_tb + token[:, None] * stride_tn + STEP * pair[None, :]
        by_cos = tl.load(cos + at, mask=mask, other=0.0).to(tl.float32)
        by_sin = tl.load(sin + at + SECOND, mask=mask, other=0.0).to(tl.float32)
        x1, x2 = turned(first, second, by_cos, by_sin)
        where = to + copy * D + token[:, None] * step + STEP * pair[None, :]
        tl.store(where, x1, mask=mask)
        tl.store(where + SECOND, x2, mask=mask)
        if D > 2 * R:
            tl.store(to + copy * D + token[:, None] * step + dim[None, :], rest, mask=inside)
