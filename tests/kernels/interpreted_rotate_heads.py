"""Rotation of heads in Triton's interpreter; `test_interpreter.py` runs this in a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from rag_middle.generation import RagMiddleModel
from rag_middle.layout import PromptLayout
from rag_middle.methods import Method, MoICE, MsPoE
from rag_middle.ops import rotate_heads
from rag_middle.ops.rope import RotaryStyle, wide_tables
from tests.families import FAMILIES
from tests.kernels.interpreting import compute_bfloat16, step_logits
from tests.prompts import laid_out
from tests.reference.rotate_heads import naive_rotation
from tests.tokenizers import byte_level_bpe


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that few tokens take several; what the kernel does not write is NaN."""
    monkeypatch.setattr(rotate_heads, "_ROWS", 8)
    torch.use_deterministic_algorithms(True)  # fills memory that is not initialised
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shapes of one rotation.

    Attributes:
        rows: of the batch.
        heads: of queries.
        groups: heads of keys.
        tokens: in every row.
        d: dimensions of a head.
        pairs: rotated pairs.
        pairing: see `RotaryStyle`.
        own_positions: rows have tables of their own, as left padding makes them.
        copies: tables that every head chooses.
        same_choice: for all rows.
    """

    rows: int = 1
    heads: int = 4
    groups: int = 2
    tokens: int = 19
    d: int = 16
    pairs: int = 8
    pairing: Literal["half", "interleaved"] = "half"
    own_positions: bool = False
    copies: int = 1
    same_choice: bool = False

    @property
    def style(self) -> RotaryStyle:
        return RotaryStyle(self.pairing, self.pairs)

    def qkv(self) -> tuple[Tensor, Tensor]:
        """Queries and keys, heads behind tokens in memory."""
        generator = torch.Generator().manual_seed(self.heads + self.d)
        query, key = (
            torch.randn(self.rows, self.tokens, heads, self.d, generator=generator).transpose(1, 2)
            for heads in (self.heads, self.groups)
        )
        return query, key

    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of three ratios, `[3, b or 1, n, r]`."""
        rows = self.rows if self.own_positions else 1
        generator = torch.Generator().manual_seed(self.pairs)
        angles = torch.rand(3, rows, self.tokens, self.pairs, generator=generator)
        return 1.2 * angles.cos(), 1.2 * angles.sin()  # a factor, as of yarn

    def choice(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        shape = 1 if self.same_choice else self.rows, self.copies, self.heads + self.groups
        return torch.randint(3, shape, generator=generator)


CASES = {
    "grouped queries": Case(),
    "one key head": Case(groups=1, tokens=5),
    "one token": Case(rows=3, tokens=1, own_positions=True),
    "left padding": Case(rows=3, own_positions=True),
    "partly rotated, interleaved": Case(rows=2, d=10, pairs=3, pairing="interleaved"),
    "odd head size": Case(d=7, pairs=2),
    "two rotations": Case(rows=2, copies=2, own_positions=True),
    "two rotations of one token, partly, chosen for all rows": Case(
        rows=2, copies=2, tokens=1, d=14, pairs=4, same_choice=True
    ),
    "wide heads": Case(d=80, pairs=40, tokens=9),
}


def expected(case: Case, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Head by head, from the definition."""
    tables, (of_queries, of_keys) = case.tables(), case.choice().tensor_split((case.heads,), -1)
    return (
        naive_rotation(q, *tables, of_queries, case.style),
        naive_rotation(k, *tables, of_keys, case.style),
    )


def triton_run(case: Case, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    tables = wide_tables(*(table.to(q) for table in case.tables()), case.style)
    return rotate_heads.rotate_heads(q, k, tables, case.choice(), case.style)


@pytest.mark.parametrize("name", CASES)
def test_every_head_is_rotated_by_the_table_it_chose(name: str) -> None:
    case = CASES[name]
    q, k = case.qkv()
    rotated = triton_run(case, q, k)
    for ours, theirs, plain in zip(rotated, expected(case, q, k), (q, k), strict=True):
        if case.copies == 1:  # as the model's own rotation leaves them
            assert ours[..., 0, :].stride() == plain.stride()
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["grouped queries", "partly rotated, interleaved"])
def test_half_precision_rounds_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_bfloat16(monkeypatch)
    case = CASES[name]
    half = [x.to(dtype) for x in case.qkv()]
    exact = expected(case, *(x.float() for x in half))
    for ours, theirs in zip(triton_run(case, *half), exact, strict=True):
        assert ours.dtype == dtype
        # Tables are rounded too.
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(ours.float(), theirs, atol=4 * eps, rtol=eps)


def test_the_operators_fake_has_the_shapes_of_what_it_computes() -> None:
    for name in ("left padding", "partly rotated, interleaved"):
        case = CASES[name]
        cos, sin = wide_tables(*case.tables(), case.style)
        opcheck(
            torch.ops.rag_middle.rotate_heads,
            (*case.qkv(), cos, sin, case.choice(), case.pairs, case.pairing == "interleaved"),
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llama", MsPoE(first_layer=0)),
        ("llama", MsPoE(first_layer=0, reference_code=True)),  # of a group, each query its own
        ("glm", MsPoE(first_layer=0)),  # interleaved, part of a head, generated tokens too
        ("gpt_neox", MsPoE(first_layer=0, head_order="entropy")),
        ("hunyuan_v1_dense", MsPoE(first_layer=0)),  # norms behind the rotation
        ("llama_yarn", MsPoE(first_layer=0)),
        ("llama", MoICE(routers="uniform", base_factors=(1.0, 2.0, 3.0))),
        ("glm", MoICE(routers="uniform", base_factors=(1.0, 2.0))),
    ],
)
def test_a_model_gives_the_logits_of_pytorchs_operators(family: str, method: Method) -> None:
    model = FAMILIES[family].build("sdpa")
    torch.testing.assert_close(
        step_logits(model, method, "triton"), step_logits(model, method, "torch"),
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip


def test_a_score_says_that_the_kernel_ran() -> None:
    model = RagMiddleModel(FAMILIES["llama"].build("sdpa"), byte_level_bpe(), kernels="triton")
    prompt, method = laid_out(PromptLayout(12, ((2, 6), (6, 10)))), MsPoE(first_layer=0)
    score = model.score(prompt, (5, 6), method=method)
    assert score.kernels == "triton"
    same = RagMiddleModel(model.model, model.tokenizer, kernels="torch")
    score_of_torch = same.score(prompt, (5, 6), method=method)
    assert score_of_torch.kernels == "torch"
    assert score.total == pytest.approx(score_of_torch.total, abs=1e-4)
