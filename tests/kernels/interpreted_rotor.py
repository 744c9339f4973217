"""RoToR's Triton kernel in Triton's interpreter; `test_interpreter.py` runs this in a process."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from rag_middle.layout import PromptLayout
from rag_middle.methods import RoToR
from rag_middle.methods.rotor.kernels import launch
from rag_middle.methods.rotor.kernels.launch import attend_triton
from rag_middle.ops.prompt_kernels import PromptColumns, Tiles
from rag_middle.ops.rope import rotate
from tests.families import FAMILIES
from tests.kernels.interpreting import step_logits
from tests.ops.test_pine import CASES, Case
from tests.reference.rotor import naive_circle


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that short documents take several; what no kernel writes is NaN."""
    monkeypatch.setattr(launch, "tile_sizes", lambda *_: Tiles(16, 16, 4, 1))
    torch.use_deterministic_algorithms(True)  # fills memory that is not initialised
    yield
    torch.use_deterministic_algorithms(False)


def triton_run(
    case: Case, q: Tensor, k: Tensor, v: Tensor, layouts: list[PromptLayout] | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a batch, generated tokens read again with the prompt."""
    layouts = layouts or [case.layout] * q.shape[0]
    paddings = [case.layout.length - layout.length for layout in layouts]
    columns = PromptColumns(layouts, paddings, q.device)
    angles = case.angles()
    if angles is not None:
        at = torch.arange(case.total) - torch.tensor(paddings)[:, None]
        cos, sin = (table[at][:, None] for table in (angles.cos, angles.sin))
        q, k = (rotate(x, cos, sin, angles.style) for x in (q, k))
    return attend_triton(q, k, v, columns, angles, case.rule)


def naive_run(case: Case, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same of one row, from the definition."""
    angles, place = case.angles(), None
    if angles is not None:
        cos, sin, style = angles
        place = lambda x, at: rotate(x, cos[at], sin[at], style)  # noqa: E731
    return naive_circle(
        q[0], k[0], v[0], case.layout.documents, place, case.rule.scale, case.softcap, case.window
    )


#: A case takes seconds here: those that no other one covers.
NAMES = (
    *("interleaved pairs", "partly rotated, interleaved", "odd head size", "one key head"),
    *("yarn-like factor", "narrow window", "everything capped and windowed"),
    *("no rotary embedding, window", "empty documents", "only empty documents"),
    *("documents only", "one token each", "no documents"),
)


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_matches_naive_loops(name: str) -> None:
    case = CASES[name]
    tensors = case.qkv()
    for got, want in zip(triton_run(case, *tensors), naive_run(case, *tensors), strict=True):
        torch.testing.assert_close(got[0], want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 21])
def test_rows_with_layouts_of_their_own_are_read_in_one_launch(window: int | None) -> None:
    case = Case((20, 7, 18), heads=2, groups=1, prefix=5, generated=1, window=window)
    others = [
        Case((0, 30), heads=2, groups=1, prefix=0, suffix=15, generated=1, window=window),
        Case((), heads=2, groups=1, prefix=40, suffix=0, generated=1, window=window),
    ]
    tensors = [torch.cat(row) for row in zip(*(case.qkv(seed) for seed in range(3)), strict=True)]
    out, lse = triton_run(case, *tensors, [case.layout, *(other.layout for other in others)])
    for row, of_row in enumerate([case, *others]):
        padding = case.layout.length - of_row.layout.length
        alone = naive_run(of_row, *(x[row : row + 1, :, padding:] for x in tensors))
        read = (out[row, :, padding:], lse[row, :, padding:])
        torch.testing.assert_close(read, alone, atol=2e-5, rtol=1e-5)
        assert not out[row, :, :padding].any()
        assert not lse[row, :, :padding].any()


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llama", RoToR(routing=0.0)),  # the unmodified model's rows in the same batch
        ("gemma2", RoToR()),  # soft-capped, sliding windows
        ("gpt_oss", RoToR()),  # sinks, sliding windows
        ("smollm3", RoToR()),  # layers without rotary embedding
    ],
)
def test_a_model_gives_the_logits_of_pytorchs_operators(family: str, method: RoToR) -> None:
    model = FAMILIES[family].build("eager")
    torch.testing.assert_close(
        step_logits(model, method, "triton"), step_logits(model, method, "torch"),
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip


def test_the_operators_fake_has_the_shapes_of_what_it_computes() -> None:
    q, k, v = torch.randn(2, 4, 9, 6), torch.randn(2, 2, 9, 6), torch.randn(2, 2, 9, 5)
    columns = PromptColumns([PromptLayout(9, ((1, 4), (4, 8))), PromptLayout(7)], [0, 2], q.device)
    arguments = (q, k, v, columns.rows, columns.tiles(16, 9), *torch.rand(2, 9, 3), 3, False)
    opcheck(
        torch.ops.rag_middle.rotor_prefill,
        (*arguments, columns.first, columns.last, columns.padded, 0.5, 0.0, 0),
        test_utils=("test_schema", "test_faketensor"),
    )
