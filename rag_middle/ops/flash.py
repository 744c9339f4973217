"""Fused attention that returns its log-sum-exp, and attention put together from several calls.

Softmax attention over a set of keys is the mean of the attentions over its parts, weighted by
``exp(lse)`` of each. So who sees what, and from how far away, can be said by which rows meet which
keys in which call, with no mask and no matrix of scores. Inputs keep their dtype; PyTorch's kernels
sum in float32.

Kernels by device: FlashAttention on CUDA and ROCm in half precision (whichever version PyTorch
carries or was told to use), the memory-efficient one in float32, the flash kernel of the CPU. Other
devices have none that returns a log-sum-exp: scores are then computed in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.ops.scores import row_chunks, scores_at_once

#: Number formats and head size that kernels on tensor cores take.
HALF = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256


class Attended(NamedTuple):
    """What some queries read from some keys.

    Attributes:
        out: `[b, h, m, dv]` in the values' dtype.
        lse: `[b, h, m]` float32, log-sum-exp of the scores.
    """

    out: Tensor
    lse: Tensor


@cache
def capability(index: int | None) -> tuple[int, int]:
    """Compute capability of a CUDA device."""
    return torch.cuda.get_device_capability(index)


def has_flash(query: Tensor, value: Tensor) -> bool:
    """Whether the FlashAttention kernels of CUDA take such tensors: windows and lengths too."""
    d, device = query.shape[-1], query.device
    if device.type not in ("cuda", "meta") or query.dtype not in HALF:
        return False
    if d != value.shape[-1] or d % 8 or d > LARGEST_HEAD:
        return False
    return device.type == "meta" or capability(device.index) >= (8, 0)


def flash(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool = False
) -> Attended:
    """Attention of every query to every key, or causal where there are as many of each.

    Args:
        query: `[b, h, m, d]`.
        key: `[b, g, n, d]`, `n` at least 1; query head `i` uses head `i // (h/g)`.
        value: `[b, g, n, dv]`.
        scale: factor on the scores.
        causal: query `i` sees the keys up to `i`; `m` must be `n`.

    Raises:
        ValueError: there are no keys.
    """
    aten, m = torch.ops.aten, query.shape[2]
    if not key.shape[2]:  # PyTorch's kernel for CPUs divides by it, which ends the process
        raise ValueError("attention to no keys at all")
    if has_flash(query, value):
        out, lse, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )
        return Attended(out, lse[:, :, :m])
    same_size = query.shape[-1] == value.shape[-1]
    if query.device.type == "cpu" and same_size:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return Attended(out, lse.float())
    if query.device.type in ("cuda", "meta") and query.shape[-1] % 8 == 0:
        share = query.shape[1] // key.shape[1]
        if share > 1:  # this kernel knows no groups
            key, value = (x.repeat_interleave(share, dim=1) for x in (key, value))
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scale
        )
        return Attended(out, lse[:, :, :m])
    return _in_blocks(query, key, value, scale, causal)


def flash_last(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Attended:
    """Causal attention of the last `m` of `n` tokens; shapes as for `flash`."""
    m, n = query.shape[2], key.shape[2]
    if m == 1 or m == n:
        return flash(query, key, value, scale=scale, causal=m > 1)
    if has_flash(query, value):
        return _flash_rows(query, key, value, scale=scale, window=n)
    before, own = slice(0, n - m), slice(n - m, n)
    return merged(
        flash(query, key[:, :, before], value[:, :, before], scale=scale),
        flash(query, key[:, :, own], value[:, :, own], scale=scale, causal=True),
    )


def flash_window(
    query: Tensor, key: Tensor, value: Tensor, window: int, *, scale: float
) -> Attended:
    """`flash_last` where a query sees keys fewer than `window` tokens before it."""
    m, n = query.shape[2], key.shape[2]
    if n <= window:
        return flash_last(query, key, value, scale=scale)
    if m == 1:
        return flash(query, key[:, :, n - window :], value[:, :, n - window :], scale=scale)
    if has_flash(query, value):
        return _flash_rows(query, key, value, scale=scale, window=window)
    first, parts = n - m, []
    if first < window:  # these rows see all before them
        q, k, v = query[:, :, : window - first], key[:, :, :window], value[:, :, :window]
        parts.append(flash_last(q, k, v, scale=scale))
    for start in range(max(first, window), n, window):
        end = min(n, start + window)
        rows = query[:, :, start - first : end - first]
        parts.append(_window_block(rows, key[:, :, :end], value[:, :, :end], window, scale))
    return joined(parts)


def _flash_rows(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int
) -> Attended:
    """`flash_window` in one call of FlashAttention, which takes queries for the last tokens."""
    m, n = query.shape[2], key.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, m, n, 0.0, True, False,
        scale=scale, window_size_left=window - 1, window_size_right=0,
    )  # fmt: skip
    return Attended(out.transpose(1, 2), lse[:, :, :m])


def _window_block(query: Tensor, key: Tensor, value: Tensor, window: int, scale: float) -> Attended:
    """The last `m` of `n` tokens, no more than the window, at least `window` tokens before them."""
    m, start = query.shape[2], key.shape[2] - query.shape[2]
    own = flash(query, key[:, :, start:], value[:, :, start:], scale=scale, causal=True)
    # Row `i` sees `window - 1 - i` tokens before the block: causal attention from right to left.
    seeing = min(m, window - 1)
    if not seeing:
        return own
    k, v = (x[:, :, start - window + 1 : start].flip(2) for x in (key, value))
    out, lse = flash_last(query[:, :, :seeing].flip(2), k, v, scale=scale)
    seen = Attended(out.flip(2), lse.flip(2))
    parts = [merged(Attended(own.out[:, :, :seeing], own.lse[:, :, :seeing]), seen)]
    if seeing < m:
        parts.append(Attended(own.out[:, :, seeing:], own.lse[:, :, seeing:]))
    return joined(parts)


def flash_each(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    bounds: Tensor | None = None,
) -> Attended:
    """Causal attention of several texts laid end to end, none of which sees another.

    Args:
        query: `[b, h, T, d]`.
        key: `[b, g, T, d]`.
        value: `[b, g, T, dv]`.
        lengths: tokens of each text, `T` together.
        scale: factor on the scores.
        bounds: `[D + 1]` int32 on the device, where each text begins and the last one ends: with
            it, a single row's texts take one call of FlashAttention.
    """
    if bounds is not None and query.shape[0] == 1 and has_flash(query, value):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        longest = max(lengths)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, 0.0, True, False, scale=scale
        )
        return Attended(out.transpose(0, 1)[None], lse[None, :, : query.shape[2]])
    parts, start = [], 0
    for length in lengths:
        if length:
            span = slice(start, start + length)
            q, k, v = (x[:, :, span] for x in (query, key, value))
            parts.append(flash(q, k, v, scale=scale, causal=True))
        start += length
    return joined(parts)


def joined(parts: Sequence[Attended]) -> Attended:
    """Rows one after the other."""
    if len(parts) == 1:
        return parts[0]
    outputs, sums = zip(*parts, strict=True)
    return Attended(torch.cat(outputs, dim=2), torch.cat(sums, dim=2))


def merged(one: Attended, other: Attended) -> Attended:
    """Attention of the same rows over the keys of both."""
    # Both shares are rounded, instead of one and the other taken as the rest: beside a share near 1
    # the rest is mostly rounding error, and beside an attention sink, whose value is near 0, the
    # small share is all that counts.
    shares = torch.stack((one.lse, other.lse)).softmax(0)[..., None].to(one.out.dtype)
    out = torch.addcmul(one.out * shares[0], other.out, shares[1])
    return Attended(out, torch.logaddexp(one.lse, other.lse))


def with_sinks(attended: Attended, sinks: Tensor | None) -> Attended:
    """Make room in the softmax for a learned extra score per head, `[h]`."""
    if sinks is None:
        return attended
    extra = sinks.float()[None, :, None]
    left = torch.sigmoid(attended.lse - extra)[..., None].to(attended.out.dtype)
    return Attended(attended.out * left, torch.logaddexp(attended.lse, extra))


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Attended:
    b, h, m, d = query.shape
    g, n = key.shape[1], key.shape[2]
    grouped = query.reshape(b, g, h // g, m, d)
    outputs, sums = [], []
    for start, stop in row_chunks(0, m, b * h * n, scores_at_once(query.device)):
        seen = stop if causal else n
        # float32: rounded scores would move the log-sum-exp by more than the kernels do.
        rows, keys = grouped[..., start:stop, :].float(), key[:, :, None, :seen].float()
        scores = torch.matmul(rows, keys.transpose(-1, -2)) * scale
        if causal:
            later = torch.ones(stop - start, seen, dtype=torch.bool, device=query.device)
            scores.masked_fill_(later.triu_(start + 1), -torch.inf)
        sums.append(scores.logsumexp(-1).flatten(1, 2))
        out = torch.matmul(scores.softmax(-1), value[:, :, None, :seen].float())
        outputs.append(out.flatten(1, 2).to(value.dtype))
    return Attended(torch.cat(outputs, dim=2), torch.cat(sums, dim=2))
