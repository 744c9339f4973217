"""PINE's Triton kernels in Triton's interpreter; `test_interpreter.py` runs this in a process."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from rag_middle.methods.pine.kernels import launch
from rag_middle.methods.pine.kernels.launch import decode_triton, prefill_triton, rotate_triton
from rag_middle.ops import kernels, prompt_kernels
from rag_middle.ops.prompt_kernels import PromptColumns, Tiles
from tests.kernels.interpreting import compute_bfloat16, llama, step_logits
from tests.ops.test_pine import CASES, Case, run
from tests.reference.pine import naive_pine, rotary_place


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that short documents take several; what no kernel writes is NaN."""
    monkeypatch.setattr(launch, "tile_sizes", lambda *_, **__: Tiles(16, 16, 4, 1))
    monkeypatch.setattr(prompt_kernels, "_KEYS_PER_SPLIT", 8)
    # The check takes a minute in tiles so small; `interpreted_checks.py` makes it.
    monkeypatch.setattr(kernels, "checked", lambda *_: None)
    torch.use_deterministic_algorithms(True)  # fills memory that is not initialised
    yield
    torch.use_deterministic_algorithms(False)


def triton_run(
    case: Case,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layouts: list[PromptLayout] | None = None,
    steps: int = 1,
) -> tuple[Tensor, Tensor]:
    """As `run`, for rows with layouts of their own."""
    layouts = layouts or [case.layout] * q.shape[0]
    end = case.layout.length
    columns = PromptColumns(layouts, [end - x.length for x in layouts], q.device)
    angles = case.angles()
    out, lse, cache = prefill_triton(
        q[:, :, :end], k[:, :, :end], v[:, :, :end], columns, angles, case.rule
    )
    outs, lses = [out], [lse]
    for start in range(end, case.total, steps):
        now = slice(start, start + steps)
        placed, rotated = rotate_triton(q[:, :, now], k[:, :, now], columns, angles, start)
        cache = torch.cat((cache, rotated), dim=2)
        out, lse = decode_triton(
            q[:, :, now], placed, cache, v[:, :, : start + steps], columns, angles, case.rule
        )
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=1).transpose(1, 2), torch.cat(lses, dim=2)


#: A case takes seconds here: those that no other one covers.
NAMES = (
    *("interleaved pairs", "partly rotated, interleaved", "odd head size", "one key head"),
    *("yarn-like factor", "everything capped and windowed", "no rotary embedding, window"),
    *("no rotary embedding", "empty documents", "only empty documents", "documents only"),
    *("one token each", "no documents"),
)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_match_naive_loops(name: str) -> None:
    case = CASES[name]
    q, k, v = case.qkv()
    angles = case.angles()
    place = None if angles is None else rotary_place(angles.cos, angles.sin, case.pairing)
    expected = naive_pine(
        q[0], k[0], v[0], case.layout.documents, place, case.rule.scale, case.softcap, case.window
    )
    for got, want in zip(triton_run(case, q, k, v), expected, strict=True):
        torch.testing.assert_close(got[0], want, atol=2e-5, rtol=1e-5)


def test_rows_with_layouts_of_their_own_are_read_in_one_launch() -> None:
    case = Case((20, 7, 18), heads=2, groups=1, prefix=5, generated=1)
    other = Case((0, 30), heads=2, groups=1, prefix=0, suffix=15, generated=1)
    q, k, v = (torch.cat(pair) for pair in zip(case.qkv(0), case.qkv(1), strict=True))
    out, lse = triton_run(case, q, k, v, [case.layout, other.layout])
    for row, (of_row, padding) in enumerate([(case, 0), (other, 9)]):
        alone = run(of_row, *(x[row : row + 1, :, padding:] for x in (q, k, v)))
        read = (out[row : row + 1, :, padding:], lse[row : row + 1, :, padding:])
        torch.testing.assert_close(read, alone, atol=2e-5, rtol=1e-5)
    assert not out[1, :, :9].any()
    assert not lse[1, :, :9].any()


def test_the_operators_fakes_have_the_shapes_of_what_they_compute() -> None:
    q, k, v = torch.randn(2, 4, 9, 6), torch.randn(2, 2, 9, 6), torch.randn(2, 2, 9, 5)
    columns = PromptColumns([PromptLayout(9, ((1, 4), (4, 8))), PromptLayout(7)], [0, 2], q.device)
    angles = (*torch.rand(2, 9, 3), 3, False)
    bounds = (columns.first, columns.last, columns.padded)
    rule = (0.5, 0.0, 0)
    operators = torch.ops.rag_middle
    for operator, arguments in (
        (
            operators.pine_prefill,
            (q, k, v, columns.rows, columns.tiles(16), *angles, *bounds, *rule),
        ),
        (operators.pine_rotate, (q[:, :, 8:], k[:, :, 8:], columns.rows, *angles, 8)),
        (operators.pine_decode, (q[:, :, 8:], q[:, :, 8:], k, v, columns.rows, *angles, *rule)),
    ):
        opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_model_gives_the_logits_of_pytorchs_operators() -> None:
    model = llama()
    torch.testing.assert_close(
        step_logits(model, PINE(), "triton"),
        step_logits(model, PINE(), "torch"),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_bfloat16(monkeypatch)
    case = Case((20, 7, 18), heads=2, groups=1, prefix=5, generated=1)
    half = [x.to(dtype) for x in case.qkv()]
    out, lse = triton_run(case, *half)
    expected, expected_lse = run(case, *(x.float() for x in half))
    assert out.dtype == dtype
    # Rounded: rotated queries and keys, queries once more for each document, weights, the result.
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, expected_lse, atol=4 * tolerance, rtol=tolerance)


def test_what_is_around_the_tensors_has_no_say() -> None:
    """Memory between and behind rows is NaN: a missing mask would show."""
    case = Case((20, 7, 18), heads=2, groups=1, d=7, pairs=2, prefix=5, generated=1)
    plain = case.qkv()
    poisoned = []
    for x in plain:
        room = torch.full((x.shape[0], x.shape[1], x.shape[2] + 40, x.shape[3] + 9), torch.nan)
        inside = room[:, :, : x.shape[2], : x.shape[3]]
        poisoned.append(inside.copy_(x))
    for got, want in zip(triton_run(case, *poisoned), triton_run(case, *plain), strict=True):
        assert torch.equal(got, want)
