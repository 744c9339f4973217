"""Checks before the first use in Triton's interpreter; `test_interpreter.py` runs this."""

import pytest
import torch

from rag_middle.methods.pine.kernels import check as pine
from rag_middle.methods.rotor.kernels import launch as rotor
from rag_middle.ops import kernels, rotate_heads, spans
from rag_middle.ops.kernels import KernelCase, KernelCheck
from rag_middle.ops.rope import RotaryStyle
from tests.kernels.interpreting import compute_bfloat16

CPU = torch.device("cpu")
PLAIN = KernelCase(CPU, torch.bfloat16, 64, 64, 2, RotaryStyle("half", 32))
OTHER = KernelCase(CPU, torch.float16, 80, 72, 1, RotaryStyle("interleaved", 20), True, True)
CHECKS = (pine.CHECK, rotor.CHECK, rotate_heads.HEADS_CHECK, spans.CHECK)


@pytest.mark.parametrize("case", [PLAIN, OTHER], ids=["plain", "other"])
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_kernels_pass_their_check_with_room_to_spare(
    check: KernelCheck, case: KernelCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_bfloat16(monkeypatch)
    monkeypatch.setattr(kernels, "MOST_STEPS", kernels.MOST_STEPS / 2)
    assert kernels.checked(check, case) is None
