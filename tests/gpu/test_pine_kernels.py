"""PINE's Triton kernels on a CUDA device, against PyTorch's operators in float32."""

import pytest
import torch
from torch import Tensor

from rag_middle.layout import PromptLayout
from rag_middle.methods.pine.kernels.attend import PineTables, base_rotate, decode, prefill
from rag_middle.methods.pine.kernels.launch import decode_triton, prefill_triton, rotate_triton
from rag_middle.ops.prompt_kernels import PromptColumns, RotaryAngles
from rag_middle.ops.rope import RotaryStyle
from rag_middle.ops.scores import ScoreRule

pytestmark = pytest.mark.gpu

LAYOUTS = [
    PromptLayout(700, ((40, 205), (205, 206), (206, 206), (206, 450), (450, 640))),
    PromptLayout(500, ((0, 300), (300, 480))),
]
GENERATED = 3


def _inputs(d: int, heads: int, groups: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values of both rows, generated tokens included, heads behind tokens."""
    generator = torch.Generator().manual_seed(d)
    tokens = LAYOUTS[0].length + GENERATED
    return [
        torch.randn(2, tokens, count, d, generator=generator).to("cuda", dtype).transpose(1, 2)
        for count in (heads, groups, groups)
    ]


def _expected(
    tensors: list[Tensor], layout: PromptLayout, row: int, angles: RotaryAngles, rule: ScoreRule
) -> tuple[Tensor, Tensor]:
    padding = LAYOUTS[0].length - layout.length
    q, k, v = (x[row : row + 1, :, padding:].float() for x in tensors)
    tables, end = PineTables(layout, angles.cos, angles.sin, angles.style), layout.length
    read = prefill(q[:, :, :end], k[:, :, :end], v[:, :, :end], tables, rule, need_lse=True)
    generated = base_rotate(k[:, :, end:], tables, end)
    keys = torch.cat((read.rotated_keys, generated), dim=2)
    out, lse = decode(q[:, :, end:], keys, v, read.state, rule, need_lse=True)
    assert read.lse is not None
    assert lse is not None
    return torch.cat((read.out, out), dim=2), torch.cat((read.lse, lse), dim=2)


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
def test_kernels_give_the_numbers_of_pytorchs_operators(
    d: int, pairs: int, pairing: str, softcap: float | None, window: int | None, dtype: torch.dtype
) -> None:
    tensors = _inputs(d, 8, 2, dtype)
    end, total = LAYOUTS[0].length, LAYOUTS[0].length + GENERATED
    turns = torch.arange(total, device="cuda")[:, None] * torch.logspace(
        0, -3, pairs, device="cuda"
    )
    angles = RotaryAngles(turns.cos(), turns.sin(), RotaryStyle(pairing, pairs))  # type: ignore[arg-type]
    rule = ScoreRule(scale=d**-0.5, softcap=softcap, window=window)
    columns = PromptColumns(LAYOUTS, [end - x.length for x in LAYOUTS], torch.device("cuda"))
    q, k, v = tensors
    first = prefill_triton(q[:, :, :end], k[:, :, :end], v[:, :, :end], columns, angles, rule)
    placed, rotated = rotate_triton(q[:, :, end:], k[:, :, end:], columns, angles, end)
    keys = torch.cat((first[2], rotated), dim=2)
    last = decode_triton(q[:, :, end:], placed, keys, v, columns, angles, rule)
    out = torch.cat((first[0], last[0]), dim=1).transpose(1, 2)
    lse = torch.cat((first[1], last[1]), dim=2)
    for row, layout in enumerate(LAYOUTS):
        padding = end - layout.length
        expected, expected_lse = _expected(tensors, layout, row, angles, rule)
        got = out[row : row + 1, :, padding:].float()
        assert got.isfinite().all()
        # Rounding may swap documents of nearly equal importance for single rows and heads.
        far = (got - expected).abs().amax(-1) > 0.03
        assert far.float().mean() < 0.01
        away = (lse[row : row + 1, :, padding:] - expected_lse).abs() > 0.05
        assert away.float().mean() < 0.01


def test_the_same_prompt_gives_the_same_bits() -> None:
    q, k, v = _inputs(64, 8, 2, torch.bfloat16)
    columns = PromptColumns([LAYOUTS[0]] * 2, [0, 0], q.device)
    n = LAYOUTS[0].length
    turns = torch.rand(n, 32, device="cuda")
    angles = RotaryAngles(turns.cos(), turns.sin(), RotaryStyle("half", 32))
    arguments = (q[:, :, :n], k[:, :, :n], v[:, :, :n], columns, angles, ScoreRule(scale=0.125))
    expected = prefill_triton(*arguments)
    for _ in range(20):
        for got, want in zip(prefill_triton(*arguments), expected, strict=True):
            assert torch.equal(got, want)
