"""Triton kernels that methods share, on a CUDA device, against the definitions."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from rag_middle.ops.rope import RotaryStyle, wide_tables
from rag_middle.ops.rotate_heads import rotate_heads
from rag_middle.ops.spans import Span, SpanTables, attend_spans
from tests.reference.rotate_heads import naive_rotation
from tests.reference.spans import naive_spans

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("rotations", [1, 2])
@pytest.mark.parametrize("columns", [3, 700])
def test_spans_are_read_as_the_definition_says(
    columns: int, rotations: int, d: int, dtype: torch.dtype
) -> None:
    if rotations == 1:
        first, last = min(2, columns), min(640, columns)
        documents = Span(first, last, 1.1 * d**-0.5, exponent=0.8, log_weight=-0.7)
        prompt = [Span(0, first, d**-0.5), documents, Span(last, -1, d**-0.5)]
        padded = [Span(1, 1, d**-0.5), documents._replace(begin=1), Span(last, -1, d**-0.5)]
        rows = [prompt, padded]
    else:
        rows = [
            [Span(-129, -1, d**-0.5, least=pad), Span(0, -129, d**-0.5, least=pad, far=True)]
            for pad in (0, 1)
        ]
    generator = torch.Generator().manual_seed(d)
    q, far, k, v = (
        torch.randn(2, tokens, heads, size, generator=generator).to("cuda", dtype).transpose(1, 2)
        for tokens, heads, size in (
            (1, 8, d), (1, 8, d), (columns, 2, rotations * d), (columns, 2, d),
        )
    )  # fmt: skip
    tables = SpanTables.of(rows, q.device)
    read = attend_spans(q, k, v, tables, far if rotations == 2 else None)
    out, lse = naive_spans(rows, q, far, k, v)
    # Weights and the result are rounded.
    torch.testing.assert_close(read.out.float().cpu(), out, atol=0.02, rtol=0.02)
    torch.testing.assert_close(read.lse.cpu(), lse, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("d", "pairs", "pairing"),
    [
        (64, 32, "half"),
        (80, 40, "half"),
        (96, 16, "half"),
        (128, 64, "interleaved"),
        (256, 128, "half"),
    ],
)
@pytest.mark.parametrize(("copies", "tokens"), [(1, 300), (2, 300), (2, 1)])
def test_heads_are_rotated_by_the_tables_they_chose(
    copies: int,
    tokens: int,
    d: int,
    pairs: int,
    pairing: Literal["half", "interleaved"],
    dtype: torch.dtype,
) -> None:
    style = RotaryStyle(pairing, pairs)
    generator = torch.Generator().manual_seed(d)
    q, k = (
        torch.randn(2, tokens, heads, d, generator=generator).to("cuda", dtype).transpose(1, 2)
        for heads in (8, 2)
    )
    turns = torch.rand(3, 2, tokens, pairs, generator=generator).cuda()
    choice = torch.randint(3, (2, copies, 10), generator=generator).cuda()
    tables = wide_tables(turns.cos(), turns.sin(), style)
    of_heads = choice.tensor_split((8,), -1)
    for got, x, own in zip(
        rotate_heads(q, k, tables, choice, style), (q, k), of_heads, strict=True
    ):
        want = naive_rotation(x.float(), turns.cos(), turns.sin(), own, style)
        torch.testing.assert_close(got.float(), want, atol=1e-3, rtol=8e-3)
