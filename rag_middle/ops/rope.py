"""Rotary position embedding (RoPE, arXiv:2104.09864) as plain tensor operations.

A family differs from another in two choices only: which head dimensions form a pair, and how many
of them are rotated. `RotaryStyle` names both; everything else is the cosine and sine of the pair
angles, `[..., n, r]` with `r` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: How a model lays out the angles of its pairs in a cosine table: each angle twice, as two halves
#: or side by side, or once.
TableFormat = Literal["halves", "repeated", "single"]


@dataclass(frozen=True, slots=True)
class RotaryStyle:
    """How a model pairs head dimensions.

    Attributes:
        pairing: ``"half"`` pairs dimension ``i`` with ``i + r`` (llama, gpt_neox, ...);
            ``"interleaved"`` pairs ``2i`` with ``2i + 1`` (cohere, glm, ...).
        pairs: ``r``; the first ``2r`` head dimensions are rotated, the others pass through.
        table_format: how its own tables lay out the angles of the pairs.
    """

    pairing: Literal["half", "interleaved"]
    pairs: int
    table_format: TableFormat = "halves"


def rotate(x: Tensor, cos: Tensor, sin: Tensor, style: RotaryStyle) -> Tensor:
    """Rotate the pairs of `x` by the given angles.

    Args:
        x: `[..., n, d]`.
        cos: `[..., n, r]`, broadcastable against `x`'s leading axes. Scaling factors of the RoPE
            variant (yarn, longrope) are part of it.
        sin: like `cos`.
        style: pairing of the model.

    Returns:
        A new tensor of the shape and dtype of `x`, computed in the tables' where that is wider:
        some models keep float32 tables beside half-precision queries.
    """
    r = style.pairs
    rotated, rest = x[..., : 2 * r], x[..., 2 * r :]
    if style.pairing == "half":
        first, second = rotated[..., :r], rotated[..., r:]
    else:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    turned = (first * cos - second * sin, second * cos + first * sin)
    if style.pairing == "half":
        return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1).to(x.dtype)
    pairs = torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
    return torch.cat((pairs, rest), dim=-1) if rest.shape[-1] else pairs


class WideTables(NamedTuple):
    """Tables as wide as the rotated part of a head: a rotation in three operations.

    ``R x = x * cos + partner(x) * sin``, with the other dimension of every pair, and the signs of
    the rotation part of `sin`.

    Attributes:
        cos: `[..., n, 2r]`.
        sin: `[..., n, 2r]`.
    """

    cos: Tensor
    sin: Tensor


def wide_tables(cos: Tensor, sin: Tensor, style: RotaryStyle) -> WideTables:
    """Widen pair tables `[..., n, r]`."""
    if style.pairing == "half":
        return WideTables(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))
    return WideTables(
        cos.repeat_interleave(2, dim=-1), torch.stack((-sin, sin), dim=-1).flatten(-2)
    )


def rotate_wide(x: Tensor, tables: WideTables, style: RotaryStyle) -> Tensor:
    """Like `rotate`, from tables that broadcast against `x` `[..., n, d]`."""
    r, width = style.pairs, 2 * style.pairs
    rotated = x[..., :width]
    turned = rotated * tables.cos
    if style.pairing == "half":
        first, second = rotated.chunk(2, dim=-1)
        parts = turned[..., :r], turned[..., r:]
        sines = tables.sin.chunk(2, dim=-1)
    else:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
        parts = turned[..., 0::2], turned[..., 1::2]
        sines = tables.sin[..., 0::2], tables.sin[..., 1::2]
    # In place: partners next to each other in a tensor of their own would be one pass more.
    parts[0].addcmul_(second, sines[0])
    parts[1].addcmul_(first, sines[1])
    turned = turned.to(x.dtype)
    if width == x.shape[-1]:
        return turned
    return torch.cat((turned, x[..., width:].expand(*turned.shape[:-1], -1)), dim=-1)
