"""Kernels are checked before their first use, and what is said and done where they are wrong."""

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from rag_middle.attention import applied, use_kernels
from rag_middle.errors import ConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import APE, PINE, Method, MsPoE, RoToR
from rag_middle.methods.pine.kernels import check as pine
from rag_middle.methods.rotor.kernels import launch as rotor
from rag_middle.notices import BackendFallbackWarning
from rag_middle.ops import kernels, rotate_heads, spans
from rag_middle.ops.kernels import KernelCase, KernelCheck, uses_triton
from rag_middle.options import Kernels
from tests.prompts import laid_out

QUERY = torch.zeros(1, 4, 3, 16, dtype=torch.bfloat16)
VALUE = torch.zeros(1, 2, 3, 8, dtype=torch.bfloat16)
LAYOUT = PromptLayout(12, ((2, 6), (6, 10)))


@pytest.fixture(autouse=True)
def _pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a check stands in the way, and none was made."""
    monkeypatch.setattr(kernels, "_obstacle", lambda *_: None)
    monkeypatch.setattr(kernels, "_faults", {})
    monkeypatch.setattr(kernels, "_warned", set())


class CompilationError(Exception):
    """As Triton's: the kernel's text, then what is wrong."""


def _check(compute: Callable[[Tensor], Tensor]) -> tuple[KernelCheck, list[KernelCase]]:
    cases: list[KernelCase] = []

    def pairs(case: KernelCase) -> Iterator[tuple[Tensor, Tensor]]:
        cases.append(case)
        (mine,), (exact,) = case.inputs(*case.draw(70, (2, case.d)))
        yield compute(mine), exact * 2

    return KernelCheck("doubling", pairs), cases


def _one_tile_missing(x: Tensor) -> Tensor:
    doubled = x * 2
    doubled[1, 1, 64:] = 0
    return doubled


def _nothing_written(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan)


def _out_of_memory(x: Tensor) -> Tensor:
    raise RuntimeError("out of resource: shared memory, Required: 300000")


def _does_not_compile(x: Tensor) -> Tensor:
    raise CompilationError("at 3:4:\n    x = tl.frob(y)\n        ^\nfrob is not defined")


def test_right_kernels_are_checked_once_and_used() -> None:
    check, cases = _check(lambda x: x * 2)
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choices: tuple[Kernels, ...] = ("auto", "auto", "triton")
        assert all(uses_triton(choice, QUERY, VALUE, VALUE, check) for choice in choices)
    assert torch.equal(torch.get_rng_state(), state)
    assert cases == [KernelCase(QUERY.device, torch.bfloat16, 16, 8, 2)]
    assert uses_triton("auto", QUERY.half(), VALUE.half(), VALUE.half(), check)
    assert [case.dtype for case in cases] == [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("compute", "what"),
    [
        (_one_tile_missing, r"numbers are 100\.0% off those of PyTorch's operators"),
        (_nothing_written, r"numbers are inf% off"),
        (_out_of_memory, r"RuntimeError: out of resource: shared memory"),
        (_does_not_compile, r"CompilationError: at 3:4: x = .* frob is not defined"),
    ],
)
def test_wrong_kernels_leave_the_work_to_pytorchs_operators(
    compute: Callable[[Tensor], Tensor], what: str
) -> None:
    check, cases = _check(compute)
    where = r"\(doubling\) fail their check on cpu, in bfloat16 with heads of 16 dimensions: "
    with pytest.warns(BackendFallbackWarning, match=f"{where}{what}.*operators compute instead"):
        assert not uses_triton("auto", QUERY, VALUE, VALUE, check)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not uses_triton("auto", QUERY, VALUE, VALUE, check)
        with pytest.raises(ConfigError, match=f"{where}{what}.*kernels='auto'"):
            uses_triton("triton", QUERY, VALUE, VALUE, check)
    assert len(cases) == 1


def test_tensors_without_numbers_are_not_checked() -> None:
    check, cases = _check(_nothing_written)
    assert uses_triton("auto", *(x.to("meta") for x in (QUERY, VALUE, VALUE)), check)
    with FakeTensorMode() as mode:
        assert uses_triton("auto", *map(mode.from_tensor, (QUERY, VALUE, VALUE)), check)
    assert not cases


@pytest.mark.parametrize(
    ("method", "module", "launcher", "name"),
    [
        (PINE(), pine, "prefill_triton", "PINE"),
        (RoToR(), rotor, "attend_triton", "RoToR"),
        (MsPoE(first_layer=0), rotate_heads, "rotate_heads", "rotation of heads"),
        (APE(temperature=0.6), spans, "attend_spans", "attention to spans of keys"),
    ],
    ids=str,
)
def test_a_model_computes_with_operators_where_kernels_fail(
    method: Method,
    module: ModuleType,
    launcher: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    llama: Any,
) -> None:
    ids = torch.arange(1, 13)[None]

    def generated(choice: Kernels) -> Tensor:
        with use_kernels(choice), torch.no_grad(), applied(llama, method, [laid_out(LAYOUT)]) as it:
            result = llama.generate(
                input_ids=ids,
                max_new_tokens=3,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        assert it.kernels_used == "torch"
        return torch.stack(result.logits)

    expected = generated("torch")  # imports the method's modules: later, they would keep the patch
    monkeypatch.setattr(module, launcher, lambda *_: _out_of_memory(QUERY))
    with pytest.warns(BackendFallbackWarning, match=name) as caught:
        assert torch.equal(generated("auto"), expected)
    assert len(caught) == 1
    with pytest.raises(ConfigError, match=f"{name}.*RuntimeError: out of resource"):
        generated("triton")
