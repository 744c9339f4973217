"""Rotation of pairs of channels."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from rag_middle.ops.rope import RotaryStyle, rotate, rotate_wide, wide_tables

PAIRINGS: tuple[Literal["half", "interleaved"], ...] = ("half", "interleaved")


def _angles(positions: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    angles = positions[:, None] * torch.logspace(0, -2, pairs)
    return angles.cos(), angles.sin()


def _by_complex_numbers(x: Tensor, positions: Tensor, style: RotaryStyle) -> Tensor:
    """A pair is a complex number; rotating multiplies it by ``exp(i angle)``."""
    out = x.clone()
    angles = positions[:, None] * torch.logspace(0, -2, style.pairs)
    for pair in range(style.pairs):
        if style.pairing == "half":
            first, second = pair, pair + style.pairs
        else:
            first, second = 2 * pair, 2 * pair + 1
        turned = torch.complex(x[..., first], x[..., second]) * torch.exp(1j * angles[:, pair])
        out[..., first], out[..., second] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("pairs", [1, 3, 4])
def test_rotation_is_multiplication_of_complex_numbers(
    pairing: Literal["half", "interleaved"], pairs: int
) -> None:
    torch.manual_seed(0)
    x, positions = torch.randn(2, 3, 5, 8), torch.arange(5) * 1.5
    style = RotaryStyle(pairing, pairs)
    given = x.clone()
    rotated = rotate(x, *_angles(positions, pairs), style)
    torch.testing.assert_close(rotated, _by_complex_numbers(x, positions, style))
    assert torch.equal(rotated[..., 2 * pairs :], x[..., 2 * pairs :])
    assert torch.equal(x, given)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(
    dtype: torch.dtype, pairing: Literal["half", "interleaved"]
) -> None:
    x, style = torch.randn(1, 4, 10).to(dtype), RotaryStyle(pairing, 4)
    tables = _angles(torch.arange(4), 4)
    exact = rotate(x.float(), *tables, style)
    for cos, sin in (tables, tuple(table.to(dtype) for table in tables)):
        by_pairs = rotate(x, cos, sin, style)
        at_once = rotate_wide(x, wide_tables(cos, sin, style), style)
        assert by_pairs.dtype == at_once.dtype == dtype
        if cos.dtype == torch.float32:  # rounded once, at the end
            assert torch.equal(by_pairs, exact.to(dtype))
        # Tables, products and sum rounded.
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(at_once.float(), exact, atol=tolerance, rtol=tolerance)
