"""PINE's Triton kernels in Triton's interpreter; `test_interpreter.py` runs this in a process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from rag_middle.attention import applied, use_kernels
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from rag_middle.methods.pine.kernels import launch
from rag_middle.methods.pine.kernels.launch import (
    PromptColumns,
    RotaryAngles,
    Tiles,
    decode_triton,
    prefill_triton,
    rotate_triton,
)
from rag_middle.ops.rope import RotaryStyle
from rag_middle.options import Kernels
from tests.ops.test_pine import CASES, Case, run
from tests.prompts import laid_out
from tests.reference.pine import naive_pine, rotary_place


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short documents take several."""
    monkeypatch.setattr(launch, "tile_sizes", lambda *_, **__: Tiles(16, 16, 4, 1))
    monkeypatch.setattr(launch, "_KEYS_PER_SPLIT", 8)


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
    cos, sin = case.table()
    angles = None
    if cos is not None and sin is not None:
        angles = RotaryAngles(cos, sin, RotaryStyle(case.pairing, case.pairs))
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
    cos, sin = case.table()
    place = None if cos is None or sin is None else rotary_place(cos, sin, case.pairing)
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
    assert (out[1, :, :9] == 0).all()


LAYOUTS = [
    PromptLayout(30, ((3, 12), (12, 17), (17, 26))),
    PromptLayout(21, ((2, 10), (10, 18))),
]


def _llama(**settings: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=None, **settings,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=0.2)
    return model


def _step_logits(model: LlamaForCausalLM, kernels: Kernels) -> Tensor:
    """Logits of three greedy steps of a left-padded batch, `[3, 2, vocabulary]`."""
    ids = torch.randint(1, 97, (2, 30), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    prompts = [laid_out(layout) for layout in LAYOUTS]
    with use_kernels(kernels), torch.no_grad(), applied(model, PINE(), prompts) as request:
        generated = model.generate(
            input_ids=ids * mask,
            attention_mask=mask,
            max_new_tokens=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    assert request.kernels_used == kernels
    return torch.stack(generated.logits)


def test_a_model_gives_the_logits_of_pytorchs_operators() -> None:
    model = _llama()
    torch.testing.assert_close(
        _step_logits(model, "triton"), _step_logits(model, "torch"), atol=1e-4, rtol=1e-4
    )


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 as a GPU has it: the interpreter multiplies its bits as integers, and truncates."""
    multiply, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> TensorHandle:
        return multiply(self, widened(a), widened(b), *rest)

    def cast_impl(self: Any, source: TensorHandle, kind: Any) -> TensorHandle:
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            numbers = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return TensorHandle(numbers.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        return cast(self, source, kind)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_float32(dtype: torch.dtype) -> None:
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
