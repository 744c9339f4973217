"""Rotation of queries or keys by tables of their heads' choice, head by head."""

import itertools

from torch import Tensor

from rag_middle.ops.rope import RotaryStyle, rotate


def naive_rotation(
    x: Tensor, cos: Tensor, sin: Tensor, choice: Tensor, style: RotaryStyle
) -> Tensor:
    """`[b, heads, n, C, d]`.

    Args:
        x: `[b, heads, n, d]`.
        cos: `[tables, b or 1, n, r]`.
        sin: like `cos`.
        choice: index of a table, `[b or 1, C, heads]`.
        style: pairing.
    """
    b, heads, n, d = x.shape
    copies = choice.shape[1]
    out = x.new_empty(b, heads, n, copies, d)
    for row, head, copy in itertools.product(range(b), range(heads), range(copies)):
        which = int(choice[row % choice.shape[0], copy, head]), row % cos.shape[1]
        out[row, head, :, copy] = rotate(x[row, head], cos[which], sin[which], style)
    return out
