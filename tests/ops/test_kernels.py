"""Which kernels compute, and what is said where they cannot."""

from typing import Any

import pytest
import torch

from rag_middle.attention import applied, kernels_in_use, use_kernels
from rag_middle.errors import ConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE, SIW
from rag_middle.ops import kernels
from rag_middle.ops.kernels import KernelCheck, uses_triton
from tests.prompts import laid_out

LAYOUT = PromptLayout(12, ((2, 6), (6, 10)))
CHECK = KernelCheck("none", lambda _: [])


def test_a_cpu_computes_with_pytorchs_operators(llama: Any) -> None:
    assert kernels_in_use() == "auto"
    with torch.no_grad(), applied(llama, PINE(), [laid_out(LAYOUT)]) as request:
        llama(torch.ones(1, 12, dtype=torch.long))
    assert request.kernels_used == "torch"


@pytest.mark.parametrize(
    ("installed", "reason"), [(True, "on the CPU"), (False, "triton package is not installed")]
)
def test_kernels_that_cannot_run_are_refused(
    llama: Any, installed: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_has_triton", lambda: installed)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with (
        torch.no_grad(),
        use_kernels("triton"),
        pytest.raises(ConfigError, match=rf"{reason}.*kernels='auto'"),
        applied(llama, PINE(), [laid_out(LAYOUT)]),
    ):
        llama(torch.ones(1, 12, dtype=torch.long))


def test_a_method_without_kernels_is_refused(llama: Any) -> None:
    with (
        use_kernels("triton"),
        pytest.raises(ConfigError, match=r"SIW.*no Triton kernels.*kernels='auto'"),
        applied(llama, SIW(), [laid_out(LAYOUT)]),
    ):
        pass


@pytest.mark.parametrize(
    ("dtype", "d", "runs"),
    [(torch.bfloat16, 128, True), (torch.float32, 128, False), (torch.float16, 512, False)],
)
def test_automatic_choice_goes_by_number_format_and_head_size(
    dtype: torch.dtype, d: int, runs: bool
) -> None:
    query = torch.empty(1, 2, 3, d, dtype=dtype, device="meta")
    assert uses_triton("auto", query, query, query, CHECK) == runs
    assert not uses_triton("torch", query, query, query, CHECK)


@pytest.mark.parametrize("needing", range(3))
def test_kernels_without_gradients_are_not_chosen_where_these_are_taken(needing: int) -> None:
    tensors = [torch.empty(1, 2, 3, 16, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    assert uses_triton("auto", *tensors, CHECK)
    tensors[needing].requires_grad_()
    assert not uses_triton("auto", *tensors, CHECK)
    with pytest.raises(ConfigError, match="gradients are taken"):
        uses_triton("triton", *tensors, CHECK)
