"""Ms-PoE's Triton kernel as an operator of PyTorch: queries and keys rotated in one launch.

`ms_poe_rotate` is a custom operator with a fake, so fake tensors, compilers and counters see it
without Triton, which is imported at the first launch. The kernel is in `triton_rotate.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rag_middle.ops.kernels import KERNEL_WORK, KernelWork
from rag_middle.ops.prompt_kernels import bytes_of, head_constants, rows_in_one_piece
from rag_middle.ops.rope import RotaryStyle, WideTables

__all__ = ["rotate_triton"]

#: Tokens that one program rotates, of one head.
_ROWS = 32


def rotate_triton(
    q: Tensor, k: Tensor, tables: WideTables, choice: Tensor, style: RotaryStyle
) -> tuple[Tensor, Tensor]:
    """Queries and keys, each head rotated by the table it chose.

    Args:
        q: `[b, h, n, d]`.
        k: `[b, g, n, d]`.
        tables: `[ratios, b or 1, n, 2r]`, possibly on another device.
        choice: index of the ratio of query heads and then key heads, `[b, h + g]`.
        style: pairing of the model.
    """
    cos, sin = (table.to(q.device) for table in tables)
    rotated: tuple[Tensor, Tensor] = torch.ops.rag_middle.ms_poe_rotate(
        q, k, cos, sin, choice, style.pairs, style.pairing == "interleaved"
    )
    return rotated


@torch.library.custom_op("rag_middle::ms_poe_rotate", mutates_args=())
def _ms_poe_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, choice: Tensor, pairs: int, interleaved: bool
) -> tuple[Tensor, Tensor]:
    from rag_middle.methods.ms_poe.kernels.triton_rotate import rotate_heads

    q, k = map(rows_in_one_piece, (q, k))
    cos, sin, choice = (x.contiguous() for x in (cos, sin, choice))  # alike in their strides
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    (b, h, n, d), g = q.shape, k.shape[1]
    rows = 1 if n == 1 else _ROWS
    with torch.cuda.device_of(q):
        # Heads first: those that share a table read it one after the other.
        rotate_heads[(h + g, -(-n // rows), b)](
            q, k, cos, sin, choice, out_q, out_k, *q.stride()[:3], *k.stride()[:3],
            *out_q.stride()[:3], *out_k.stride()[:3], cos.stride(0),
            cos.stride(1) if cos.shape[1] > 1 else 0, cos.stride(2), choice.stride(0), n,
            H=h, BM=rows, num_warps=4, **head_constants(d, True, pairs, interleaved),
        )  # fmt: skip
    return out_q, out_k


@_ms_poe_rotate.register_fake
def _(q: Tensor, k: Tensor, *_: Tensor | int) -> tuple[Tensor, Tensor]:
    q, k = map(rows_in_one_piece, (q, k))
    return torch.empty_like(q), torch.empty_like(k)


def _work(outputs: Sequence[Tensor], *arguments: Tensor) -> KernelWork:
    q, k, cos, sin, choice, *_ = arguments
    # Of tables, one number of every pair is read, once: heads that share them run together.
    moved = bytes_of(q, k, choice, *outputs) + bytes_of(cos, sin) // 2
    return KernelWork(0, moved, 1)


KERNEL_WORK["rag_middle::ms_poe_rotate"] = _work
