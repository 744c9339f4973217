"""Attention of one token to spans of its keys, each read in a way of its own, as Triton kernels."""

import triton
import triton.language as tl

from rag_middle.ops.triton_tiles import LOG2E, lse_of, softmax_step


@triton.jit
def attend_spans(
    q, far, k, v, spans, rules, parts, sums,
    stride_qb, stride_qh, stride_fb, stride_fh, stride_kb, stride_kg, stride_kn,
    stride_vb, stride_vg, stride_vn, heads, columns, splits,
    SPANS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    DV: tl.constexpr, DV_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One program: heads that share keys, and one of `splits` parts of the columns.

    `spans` `[b, SPANS, 4]` int32: begin, end and least begin of the columns, those below zero
    counted back from the end, and which query reads them. `rules` `[b, SPANS, 3]` float32 begins
    with the factor on the scores. `parts` `[SPANS, splits, b, h, dv]` is written where `sums`
    `[SPANS, splits, b, h]` is not -inf.
    """
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    group, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    packed = tile * BM + tl.arange(0, BM)
    live, head = packed < SHARE, group * SHARE + packed
    dim, of_value = tl.arange(0, D_PAD), tl.arange(0, DV_PAD)
    k += row * stride_kb + group * stride_kg
    v += row * stride_vb + group * stride_vg
    width = tl.cdiv(columns, splits)
    low = split * width
    high = tl.minimum(low + width, columns)
    for span in tl.static_range(SPANS):
        its = spans + (row * SPANS + span) * 4
        begin, end, is_far = tl.load(its), tl.load(its + 1), tl.load(its + 3)
        begin += tl.where(begin < 0, columns + 1, 0)
        end += tl.where(end < 0, columns + 1, 0)
        begin = tl.maximum(tl.maximum(begin, tl.load(its + 2)), low)
        end = tl.minimum(end, high)
        top = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
        at_sum = ((span * splits + split) * tl.num_programs(2) + row) * heads + head
        if begin < end:
            factor = tl.load(rules + (row * SPANS + span) * 3) * LOG2E
            mask = live[:, None] & (dim < D)[None, :]
            if is_far:
                at = far + row * stride_fb + head * stride_fh
            else:
                at = q + row * stride_qb + head * stride_qh
            query = tl.load(at[:, None] + dim[None, :], mask=mask, other=0.0)
            acc = tl.zeros([BM, DV_PAD], tl.float32)
            for first in range(begin, end, BN):
                column = first + tl.arange(0, BN)
                there = column < end
                key = tl.load(
                    k + column[:, None] * stride_kn + is_far * D + dim[None, :],
                    mask=there[:, None] & (dim < D)[None, :], other=0.0,
                )  # fmt: skip
                scores = tl.dot(query, tl.trans(key)) * factor
                scores = tl.where(there[None, :], scores, float("-inf"))
                weights, keep, top, total = softmax_step(scores, top, total)
                value = tl.load(
                    v + column[:, None] * stride_vn + of_value[None, :],
                    mask=there[:, None] & (of_value < DV)[None, :], other=0.0,
                )  # fmt: skip
                acc = tl.dot(weights.to(value.dtype), value, acc * keep[:, None])
            tl.store(
                parts + at_sum.to(tl.int64)[:, None] * DV + of_value[None, :], acc / total[:, None],
                mask=live[:, None] & (of_value < DV)[None, :],
            )  # fmt: skip
        tl.store(sums + at_sum, lse_of(top, total), mask=live)


@triton.jit
def merge_spans(
    parts, sums, rules, out, lse, stride_ob, stride_oh, stride_lb, stride_lh, splits,
    SPANS: tl.constexpr, DV: tl.constexpr, DV_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
):  # fmt: skip
    """What one head reads from all spans.

    A span's log-sum-exp times the second number of its rule, and the third added, is its share.
    """
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    heads, batch = tl.num_programs(0), tl.num_programs(1)
    split, dim = tl.arange(0, SPLITS_PAD), tl.arange(0, DV_PAD)
    acc = tl.zeros([DV_PAD], tl.float32)
    top, total = tl.full([], float("-inf"), tl.float32), tl.zeros([], tl.float32)
    for span in tl.static_range(SPANS):
        at = ((span * splits + split) * batch + row) * heads + head
        logs = tl.load(sums + at, mask=split < splits, other=float("-inf"))
        highest = tl.max(logs, 0)
        if highest > float("-inf"):
            shares = tl.exp(logs - highest)
            whole = tl.sum(shares, 0)
            mask = (logs > float("-inf"))[:, None] & (dim < DV)[None, :]
            part = tl.load(parts + at[:, None] * DV + dim[None, :], mask=mask, other=0.0)
            mixed = tl.sum(part * shares[:, None], 0) / whole
            rule = rules + (row * SPANS + span) * 3
            mass = (highest + tl.log(whole)) * tl.load(rule + 1) + tl.load(rule + 2)
            new_top = tl.maximum(top, mass)
            keep, share = tl.exp(top - new_top), tl.exp(mass - new_top)
            acc = acc * keep + mixed * share
            total = total * keep + share
            top = new_top
    seen = tl.where(total > 0, total, 1.0)
    to = out + row * stride_ob + head * stride_oh + dim
    tl.store(to, (acc / seen).to(out.dtype.element_ty), mask=dim < DV)
    tl.store(lse + row * stride_lb + head * stride_lh, top + tl.log(seen))
