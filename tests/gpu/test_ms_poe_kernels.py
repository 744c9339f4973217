"""Ms-PoE's Triton kernel on a CUDA device, against the rotation of each head by itself."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from rag_middle.methods.ms_poe.kernels.launch import rotate_triton
from rag_middle.ops.rope import RotaryStyle, rotate, wide_tables

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 700])
@pytest.mark.parametrize(
    ("d", "pairs", "pairing"),
    [
        (64, 32, "half"),
        (80, 40, "half"),
        (96, 16, "half"),
        (128, 64, "half"),
        (128, 64, "interleaved"),
        (256, 128, "half"),
    ],
)
def test_the_kernel_rotates_each_head_by_the_table_it_chose(
    d: int, pairs: int, pairing: Literal["half", "interleaved"], tokens: int, dtype: torch.dtype
) -> None:
    rows, heads, groups, ratios = 3, 8, 2, 4
    style = RotaryStyle(pairing, pairs)
    generator = torch.Generator().manual_seed(d)
    query, key = (
        torch.randn(rows, tokens, count, d, generator=generator).to("cuda", dtype).transpose(1, 2)
        for count in (heads, groups)
    )
    choice = torch.randint(ratios, (rows, heads + groups), generator=generator).cuda()
    for own in (1, rows):  # rows share tables, or have their own
        angles = torch.rand(ratios, own, tokens, pairs, generator=generator).cuda()
        cos, sin = (table.to(dtype) for table in (angles.cos(), angles.sin()))
        rotated = rotate_triton(query, key, wide_tables(cos, sin, style), choice, style)
        of_row = torch.arange(rows, device="cuda")[:, None] % own
        choices = choice.split((heads, groups), dim=1)
        for ours, plain, chosen in zip(rotated, (query, key), choices, strict=True):
            tables = (table.float()[chosen, of_row] for table in (cos, sin))
            expected = rotate(plain.float(), *tables, style)
            eps = torch.finfo(dtype).eps  # the result is rounded, and nothing else
            torch.testing.assert_close(ours.float(), expected, atol=1e-5, rtol=eps)
