"""Rotation of queries and keys by tables of their heads' choice, in one launch.

`rotate_heads` is a custom operator with a fake, so fake tensors, compilers and counters see it
without Triton, which is imported at the first launch. The kernel is in `triton_rotate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rag_middle.ops.kernels import KernelCase, KernelCheck
from rag_middle.ops.prompt_kernels import head_constants, rows_in_one_piece
from rag_middle.ops.rope import RotaryStyle, WideTables, rotate_wide, wide_tables

#: Tokens that one program rotates, of one head.
_ROWS = 32


def rotate_heads(
    q: Tensor, k: Tensor, tables: WideTables, choice: Tensor, style: RotaryStyle
) -> tuple[Tensor, Tensor]:
    """Queries and keys `[b, heads, n, C, d]`, each head rotated by each of the tables it chose.

    Args:
        q: `[b, h, n, d]`.
        k: `[b, g, n, d]`.
        tables: `[tables, b or 1, n, 2r]`, possibly on another device.
        choice: indices of the tables of query heads and then key heads, `[b or 1, C, h + g]`.
        style: pairing of the model.
    """
    cos, sin = (table.to(q.device) for table in tables)
    rotated: tuple[Tensor, Tensor] = torch.ops.rag_middle.rotate_heads(
        q, k, cos, sin, choice, style.pairs, style.pairing == "interleaved"
    )
    return rotated


@torch.library.custom_op("rag_middle::rotate_heads", mutates_args=())
def _rotate_heads(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, choice: Tensor, pairs: int, interleaved: bool
) -> tuple[Tensor, Tensor]:
    from rag_middle.ops import triton_rotate

    q, k, cos, sin, choice = map(rows_in_one_piece, (q, k, cos, sin, choice))
    (b, h, n, d), g, copies = q.shape, k.shape[1], choice.shape[1]
    out_q, out_k = _empty(q, copies), _empty(k, copies)
    rows = 1 if n == 1 else _ROWS
    with torch.cuda.device_of(q):
        # Heads first: those that share a table read it one after the other.
        triton_rotate.rotate_heads[(h + g, -(-n // rows), b)](
            q, k, cos, sin, choice, out_q, out_k, *q.stride()[:3], *k.stride()[:3],
            *out_q.stride()[:3], *out_k.stride()[:3], cos.stride(0),
            cos.stride(1) if cos.shape[1] > 1 else 0, cos.stride(2),
            choice.stride(0) if choice.shape[0] > 1 else 0, choice.stride(1), n,
            H=h, COPIES=copies, BM=rows, num_warps=4,
            **head_constants(d, True, pairs, interleaved),
        )  # fmt: skip
    return out_q, out_k


def _empty(x: Tensor, copies: int) -> Tensor:
    """Room `[b, heads, n, C, d]`, heads behind tokens in memory, as the model's rotation has it."""
    b, heads, n, d = x.shape
    return x.new_empty(b, n, heads, copies, d).transpose(1, 2)


@_rotate_heads.register_fake
def _(
    q: Tensor, k: Tensor, _cos: Tensor, _sin: Tensor, choice: Tensor, *_: int
) -> tuple[Tensor, Tensor]:
    return _empty(q, choice.shape[1]), _empty(k, choice.shape[1])


def _pairs(case: KernelCase) -> Iterator[tuple[Tensor, Tensor]]:
    """Of a prompt and of a token, two copies each."""
    style, heads = case.style, 2 * case.share
    assert style is not None
    for n in (2 * _ROWS + 6, 1):
        cos, sin = (x.view(3, 2, n, -1) for x in case.tables(6 * n))
        drawn = case.draw(n, (heads, case.d), (2, case.d))
        mine, (q, k, cos, sin) = case.inputs(*drawn, *wide_tables(cos, sin, style))
        choice = torch.arange(2 * 2 * (heads + 2), device="cpu").view(2, 2, -1) % 3
        rows = torch.arange(2, device="cpu")[:, None, None]
        of_heads = WideTables(cos[choice, rows], sin[choice, rows])
        wanted = rotate_wide(torch.cat((q, k), dim=1)[:, None], of_heads, style).movedim(1, 3)
        tables = WideTables(*mine[2:])
        rotated = rotate_heads(mine[0], mine[1], tables, choice.to(case.device), style)
        yield from zip(rotated, wanted.tensor_split((heads,), dim=1), strict=True)


HEADS_CHECK = KernelCheck("rotation of heads", _pairs)
