"""Fast PINE against plain loops, and the properties the paper promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from rag_middle.layout import PromptLayout
from rag_middle.methods.pine.kernels.attend import PineTables, base_rotate, decode, prefill
from rag_middle.ops import scores
from rag_middle.ops.prompt_kernels import RotaryAngles
from rag_middle.ops.rope import RotaryStyle
from rag_middle.ops.scores import ScoreRule
from tests.reference.pine import naive_pine, rotary_place


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    prefix: int = 3
    suffix: int = 4
    generated: int = 2
    heads: int = 4
    groups: int = 2
    d: int = 8
    pairs: int = 4  # 0: no rotary embedding
    pairing: Literal["half", "interleaved"] = "half"
    factor: float = 1.0  # of a yarn-like table
    softcap: float | None = None
    window: int | None = None

    @property
    def layout(self) -> PromptLayout:
        spans, start = [], self.prefix
        for length in self.lengths:
            spans.append((start, start + length))
            start += length
        return PromptLayout(length=start + self.suffix, documents=tuple(spans))

    @property
    def total(self) -> int:
        return self.layout.length + self.generated

    @property
    def rule(self) -> ScoreRule:
        return ScoreRule(scale=0.5, softcap=self.softcap, window=self.window)

    def angles(self) -> RotaryAngles | None:
        if not self.pairs:
            return None
        turns = torch.arange(self.total)[:, None] * torch.logspace(0, -2, self.pairs)
        style = RotaryStyle(self.pairing, self.pairs)
        return RotaryAngles(self.factor * turns.cos(), self.factor * turns.sin(), style)

    def tables(self) -> PineTables:
        return PineTables(self.layout, self.angles())

    def qkv(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        make = torch.Generator().manual_seed(seed)
        shapes = (
            (1, self.heads, self.total, self.d),
            (1, self.groups, self.total, self.d),
            (1, self.groups, self.total, self.d + 2),
        )
        q, k, v = (torch.randn(shape, generator=make) for shape in shapes)
        return q, k, v


CASES = {
    "unequal documents": Case((4, 3, 6)),
    "interleaved pairs": Case((4, 3, 6), pairing="interleaved"),
    "partly rotated, interleaved": Case((4, 3, 6), pairing="interleaved", pairs=3),
    "odd head size": Case((4, 3, 6), d=7, pairs=2),
    "partly rotated, halves": Case((4, 3, 6), pairs=2),
    "one head per key": Case((4, 3, 6), groups=4),
    "one key head": Case((3, 3, 3), groups=1),
    "yarn-like factor": Case((4, 3, 6), factor=1.3),
    "soft-capped": Case((4, 3, 6), softcap=1.5),
    "narrow window": Case((4, 3, 6), window=3),
    "wide window": Case((4, 3, 6), window=12),
    "everything capped and windowed": Case((5, 1, 4, 2), softcap=2.0, window=7, factor=0.8),
    "no rotary embedding": Case((4, 3, 6), pairs=0),
    "no rotary embedding, window": Case((4, 3, 6), pairs=0, window=6),
    "empty documents": Case((0, 4, 0, 3)),
    "only empty documents": Case((0, 0)),
    "empty prefix": Case((4, 3, 6), prefix=0),
    "empty suffix": Case((4, 3, 6), suffix=0),
    "documents only": Case((4, 3, 6), prefix=0, suffix=0),
    "one document": Case((5,)),
    "one token each": Case((1, 1, 1, 1)),
    "no documents": Case((), prefix=7, suffix=0),
    "no documents, window": Case((), prefix=7, suffix=0, window=3),
}


def run(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Prefill, then decode token by token; output and log-sum-exp of all tokens."""
    tables, end = case.tables(), case.layout.length
    first = prefill(q[:, :, :end], k[:, :, :end], v[:, :, :end], tables, case.rule, need_lse=True)
    outs, lses, cache = [first.out], [first.lse], first.rotated_keys
    for start in range(end, case.total):
        now = slice(start, start + 1)
        cache = torch.cat((cache, base_rotate(k[:, :, now], tables, start)), dim=2)
        out, lse = decode(
            q[:, :, now], cache, v[:, :, : start + 1], first.state, case.rule, need_lse=True
        )
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat([x for x in lses if x is not None], dim=2)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.one_in(3)
def test_pine_matches_naive_loops(case: Case) -> None:
    q, k, v = case.qkv()
    angles = case.angles()
    place = None if angles is None else rotary_place(angles.cos, angles.sin, case.pairing)
    expected = naive_pine(
        q[0], k[0], v[0], case.layout.documents, place, case.rule.scale, case.softcap, case.window
    )
    for got, want in zip(run(case, q, k, v), expected, strict=True):
        torch.testing.assert_close(got[0], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["unequal documents", "wide window", "one token each"])
def test_bounded_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    whole = run(case, *case.qkv())
    monkeypatch.setattr(scores, "_SCORES_PER_CPU_THREAD", 100)
    torch.testing.assert_close(run(case, *case.qkv()), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_float32(dtype: torch.dtype) -> None:
    case = Case((4, 3, 6))
    half = [x.to(dtype) for x in case.qkv()]
    out, lse = run(case, *half)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    expected, expected_lse = run(case, *(x.float() for x in half))
    tolerance = 4 * torch.finfo(dtype).eps  # cached keys and the result are rounded
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, expected_lse, atol=4 * tolerance, rtol=tolerance)
