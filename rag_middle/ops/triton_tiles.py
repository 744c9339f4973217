"""Parts of the Triton kernels: tiles of heads split by rotary pair, and softmax over tiles of keys.

A head of `D` dimensions is three tiles: the first and the second dimensions of its `R` pairs, and
the rest. `STEP` and `SECOND` say where they lie: pair `i` is dimensions ``STEP * i`` and
``STEP * i + SECOND``. A dot product is the sum of those of the tiles, and rotating moves nothing.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_head(
    x, stride, index, live,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
):  # fmt: skip
    """Tiles `[n, R_PAD]`, `[n, R_PAD]`, `[n, REST_PAD]` of rows `index` of `x`.

    Zero where not live. Without a rest, its place is taken by the first tile.
    """
    pair = tl.arange(0, R_PAD)
    mask = live[:, None] & (pair < R)[None, :]
    where = x + index[:, None] * stride + STEP * pair[None, :]
    first = tl.load(where, mask=mask, other=0.0)
    second = tl.load(where + SECOND, mask=mask, other=0.0)
    rest = first
    if D > 2 * R:
        dim = 2 * R + tl.arange(0, REST_PAD)
        inside = live[:, None] & (dim < D)[None, :]
        rest = tl.load(x + index[:, None] * stride + dim[None, :], mask=inside, other=0.0)
    return first, second, rest


@triton.jit
def load_angles(cos, sin, positions, live, R: tl.constexpr, R_PAD: tl.constexpr):
    """Cosines and sines `[n, R_PAD]` at positions `[n]`."""
    pair = tl.arange(0, R_PAD)
    mask = live[:, None] & (pair < R)[None, :]
    where = positions[:, None] * R + pair[None, :]
    return tl.load(cos + where, mask=mask, other=0.0), tl.load(sin + where, mask=mask, other=0.0)


@triton.jit
def turned(first, second, cos, sin):
    """Pairs rotated by angles that broadcast against them, in the pairs' own format."""
    x, y = first.to(tl.float32), second.to(tl.float32)
    return (x * cos - y * sin).to(first.dtype), (y * cos + x * sin).to(second.dtype)


@triton.jit
def scores_of(
    q1, q2, q3, k1, k2, k3, scale, softcap, SOFTCAP: tl.constexpr, REST: tl.constexpr
):  # fmt: skip
    """Scores `[m, n]` times log2(e), for powers of two in place of exponentials."""
    scores = tl.dot(q1, tl.trans(k1))
    scores = tl.dot(q2, tl.trans(k2), scores)
    if REST:
        scores = tl.dot(q3, tl.trans(k3), scores)
    scores *= scale
    if SOFTCAP:  # c * tanh(x / c)
        scores = softcap * (2.0 / (1.0 + tl.exp2(scores * (-2.0 * LOG2E / softcap))) - 1.0)
    return scores * LOG2E


@triton.jit
def softmax_step(scores, top, total):
    """One more tile in a running softmax.

    Returns the tile's weights, the factor that what was summed before takes, and the new largest
    score and sum of weights of each row.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing is visible so far
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(top - base)
    return weights, keep, new_top, total * keep + tl.sum(weights, 1)


@triton.jit
def read_keys(
    acc, top, total, q1, q2, q3, k, v, stride_kn, stride_vn, begin, end, limit, reach,
    scale, softcap, window, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr, SECOND: tl.constexpr,
    R_PAD: tl.constexpr, REST_PAD: tl.constexpr,
    DV: tl.constexpr, DV_PAD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Attend to columns `begin..end`, in each row those before its `limit`.

    A key at column `c` is `reach - c` positions away.
    """
    dim = tl.arange(0, DV_PAD)
    for at in range(begin, end, BN):
        column = at + tl.arange(0, BN)
        there = column < end
        k1, k2, k3 = load_head(k, stride_kn, column, there, D, R, STEP, SECOND, R_PAD, REST_PAD)
        scores = scores_of(q1, q2, q3, k1, k2, k3, scale, softcap, SOFTCAP, D > 2 * R)
        visible = column[None, :] < limit[:, None]
        if WINDOW:
            visible &= reach[:, None] - column[None, :] < window
        scores = tl.where(visible, scores, float("-inf"))
        weights, keep, top, total = softmax_step(scores, top, total)
        value = tl.load(
            v + column[:, None] * stride_vn + dim[None, :],
            mask=there[:, None] & (dim < DV)[None, :],
            other=0.0,
        )
        acc = tl.dot(weights.to(value.dtype), value, acc * keep[:, None])
    return acc, top, total


@triton.jit
def lse_of(top, total):
    """Natural log-sum-exp of rows; -inf where nothing was visible."""
    seen = total > 0
    return tl.where(seen, (top + tl.log2(tl.where(seen, total, 1.0))) / LOG2E, float("-inf"))
