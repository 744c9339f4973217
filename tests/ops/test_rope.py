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
def test_scores_depend_on_distances_only(pairing: Literal["half", "interleaved"]) -> None:
    torch.manual_seed(1)
    q, k = torch.randn(1, 8), torch.randn(1, 8)
    style = RotaryStyle(pairing, 3)

    def score(query_at: float, key_at: float) -> Tensor:
        query = rotate(q, *_angles(torch.tensor([query_at]), 3), style)
        return query @ rotate(k, *_angles(torch.tensor([key_at]), 3), style).T

    torch.testing.assert_close(score(7.5, 3.0), score(104.5, 100.0), atol=1e-4, rtol=0)
    assert (score(7.5, 3.0) - score(7.5, 4.0)).abs() > 1e-3


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_tables_may_differ_by_row_and_head_and_carry_a_factor(
    pairing: Literal["half", "interleaved"],
) -> None:
    torch.manual_seed(2)
    x, style = torch.randn(2, 3, 4, 8), RotaryStyle(pairing, 4)
    cos, sin = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    whole = rotate(x, cos, sin, style)
    for row in range(2):
        for head in range(3):
            alone = rotate(x[row, head], cos[row, head], sin[row, head], style)
            torch.testing.assert_close(whole[row, head], alone)
    torch.testing.assert_close(rotate(x, 2 * cos, 2 * sin, style), 2 * whole)


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
