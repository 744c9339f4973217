"""RoToR's Triton kernel on a CUDA device, against attention as the definition says it."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from rag_middle.layout import PromptLayout
from rag_middle.methods.rotor.kernels.launch import attend_triton
from rag_middle.ops.prompt_kernels import PromptColumns, RotaryAngles
from rag_middle.ops.rope import RotaryStyle, rotate
from rag_middle.ops.scores import ScoreRule
from tests.reference.rotor import naive_circle

pytestmark = pytest.mark.gpu

LAYOUTS = [
    PromptLayout(700, ((40, 205), (205, 206), (206, 206), (206, 450), (450, 640))),
    PromptLayout(500, ((0, 300), (300, 480))),
    PromptLayout(600),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
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
@pytest.mark.parametrize(("softcap", "window"), [(None, None), (20.0, 300)])
def test_the_kernel_gives_the_numbers_of_the_definition(
    d: int,
    pairs: int,
    pairing: Literal["half", "interleaved"],
    softcap: float | None,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    width = LAYOUTS[0].length
    generator = torch.Generator().manual_seed(d)
    q, k, v = (
        torch.randn(3, width, heads, d, generator=generator).to("cuda", dtype).transpose(1, 2)
        for heads in (8, 2, 2)
    )
    turns = torch.arange(width, device="cuda")[:, None] * torch.logspace(
        0, -3, pairs, device="cuda"
    )
    angles = RotaryAngles(turns.cos(), turns.sin(), RotaryStyle(pairing, pairs))
    rule = ScoreRule(scale=d**-0.5, softcap=softcap, window=window)
    paddings = [width - layout.length for layout in LAYOUTS]
    columns = PromptColumns(LAYOUTS, paddings, q.device)
    at = (torch.arange(width) - torch.tensor(paddings)[:, None]).clamp(min=0).cuda()
    tables = angles.cos[at][:, None], angles.sin[at][:, None]
    placed, rotated = (rotate(x, *tables, angles.style) for x in (q, k))
    read = attend_triton(placed, rotated, v, columns, angles, rule)
    again = attend_triton(placed, rotated, v, columns, angles, rule)
    assert all(torch.equal(*pair) for pair in zip(read, again, strict=True))
    for row, (layout, padding) in enumerate(zip(LAYOUTS, paddings, strict=True)):
        out, lse = naive_circle(
            *(x[row, :, padding:].float() for x in (q, k, v)),
            layout.documents,
            lambda x, at: rotate(x, angles.cos[at], angles.sin[at], angles.style),
            rule.scale,
            softcap,
            window,
        )
        # bf16: rotated queries and keys, weights and the result are rounded.
        torch.testing.assert_close(read.out[row, :, padding:].float(), out, atol=0.03, rtol=0)
        torch.testing.assert_close(read.lse[row, :, padding:], lse, atol=0.05, rtol=0)
        assert not read.out[row, :, :padding].any()
        assert not read.lse[row, :, :padding].any()
