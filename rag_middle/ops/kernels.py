"""Which kernels compute: those that methods bring, in Triton, or PyTorch's operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from rag_middle.errors import ConfigError
from rag_middle.notices import BackendFallbackWarning, warn_caller
from rag_middle.ops.flash import HALF, LARGEST_HEAD, capability
from rag_middle.ops.rope import RotaryStyle
from rag_middle.ops.scores import ScoreRule
from rag_middle.options import Kernels


class KernelCase(NamedTuple):
    """What kernels are compiled for, and small inputs to check them with.

    Attributes:
        device: where they run.
        dtype: of queries, keys and values.
        d: dimensions of a head of queries and keys.
        dv: of values.
        share: query heads that share a key head.
        style: pairing of the model; None without a rotation.
        softcap: whether scores are soft-capped.
        window: whether it slides.
    """

    device: torch.device
    dtype: torch.dtype
    d: int
    dv: int
    share: int
    style: RotaryStyle | None = None
    softcap: bool = False
    window: bool = False

    @property
    def rule(self) -> ScoreRule:
        """With numbers that matter to so few tokens."""
        return ScoreRule(
            scale=self.d**-0.5,
            softcap=2.0 if self.softcap else None,
            window=50 if self.window else None,
        )

    def draw(self, tokens: int, *heads: tuple[int, int]) -> list[Tensor]:
        """Random `[2, h, tokens, d]` for each `(h, d)`, heads behind tokens as models have them."""
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randn(
                2, tokens, h, d, generator=generator, device="cpu", dtype=torch.float32
            ).transpose(1, 2)
            for h, d in heads
        ]

    def tables(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[positions, r]`, with a factor as yarn has one."""
        pairs = 0 if self.style is None else self.style.pairs
        angles = torch.arange(positions, device="cpu")[:, None]
        angles = angles * torch.logspace(0, -3, pairs, device="cpu", dtype=torch.float32)
        return 1.1 * angles.cos(), 1.1 * angles.sin()

    def inputs(self, *tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """On the device in its number format, and the same numbers in float32 on the CPU."""
        rounded = [x.to(self.dtype) for x in tensors]
        return [x.to(self.device) for x in rounded], [x.float() for x in rounded]


class KernelCheck(NamedTuple):
    """How kernels are checked before their first use.

    Attributes:
        name: of the kernels.
        pairs: for a case, what they compute and what PyTorch's operators do, `[..., d]`.
    """

    name: str
    pairs: Callable[[KernelCase], Iterable[tuple[Tensor, Tensor]]]


def uses_triton(
    kernels: Kernels,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    check: KernelCheck,
    *,
    style: RotaryStyle | None = None,
    rule: ScoreRule | None = None,
    obstacle: str | None = None,
) -> bool:
    """Whether Triton kernels run on such tensors; where they would for the first time, as checked.

    Args:
        kernels: what was asked for.
        query: `[b, h, m, d]`.
        key: `[b, g, n, d]`.
        value: `[b, g, n, dv]`.
        check: of the kernels.
        style: pairing of the rotation that they compute.
        rule: from dot products to scores, where they attend.
        obstacle: why the method's kernels cannot run, whatever the tensors are like.

    Raises:
        ConfigError: they were asked for and cannot run, or compute wrong numbers.
    """
    if kernels == "torch":
        return False
    reason = obstacle or _obstacle(kernels, query, key, value)
    if reason is None:
        case = KernelCase(
            query.device, query.dtype, query.shape[-1], value.shape[-1],
            query.shape[1] // value.shape[1], style,
            rule is not None and rule.softcap is not None,
            rule is not None and rule.window is not None,
        )  # fmt: skip
        reason = _fault(kernels, query, check, case)
    if reason is not None and kernels == "triton":
        raise ConfigError(
            f"kernels='triton' cannot run here: {reason}. Use kernels='auto', which computes with "
            "PyTorch's operators where Triton kernels cannot run."
        )
    return reason is None


#: Largest relative error of a row (norm of the difference / norm), in machine epsilons; rounding
#: alone (of rotated queries and keys, weights, the result) gives about 1.
MOST_STEPS = 4

#: By check and case: what is wrong with the kernels, or None.
_faults: dict[tuple[str, KernelCase], str | None] = {}
_warned: set[tuple[str, KernelCase]] = set()
_checking = Lock()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _fault(kernels: Kernels, query: Tensor, check: KernelCheck, case: KernelCase) -> str | None:
    """What is wrong with kernels, warned of where operators first compute because of it."""
    key = check.name, case
    if key not in _faults:
        no_numbers = query.device.type == "meta" or isinstance(query, FakeTensor)
        # A check waits for the device, which a CUDA graph that is being captured does not allow.
        if no_numbers or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        with _checking:
            if key not in _faults:
                _faults[key] = checked(check, case)
    fault = _faults[key]
    if fault is not None and kernels == "auto" and key not in _warned:
        _warned.add(key)
        warn_caller(BackendFallbackWarning(f"{fault}. PyTorch's operators compute instead."))
    return fault


@torch.no_grad()
def checked(check: KernelCheck, case: KernelCase) -> str | None:
    """What is wrong with kernels, in words; None where they pass."""
    # In float32, which only the interpreter takes, sums in another order make more of a difference.
    most = max(MOST_STEPS * torch.finfo(case.dtype).eps, 1e-4)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # "medium" computes in bfloat16 on some CPUs
    try:
        distances = [
            (got.to("cpu", torch.float32) - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-6)
            for got, want in check.pairs(case)
        ]
        worst = max(float(x.max().nan_to_num(torch.inf)) for x in distances)
    except torch.OutOfMemoryError:  # says nothing of the kernels
        raise
    except Exception as error:  # of Triton, its compiler, the assembler or the driver
        # Triton's messages end with what is wrong.
        what = f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
    else:
        if worst <= most:
            return None
        what = f"numbers are {worst:.1%} off those of PyTorch's operators"
    finally:
        torch.set_float32_matmul_precision(precision)
    number_format = str(case.dtype).removeprefix("torch.")
    return (
        f"Triton kernels ({check.name}) fail their check on {case.device}, in {number_format} with "
        f"heads of {case.d} dimensions: {what}"
    )


def _obstacle(kernels: Kernels, query: Tensor, key: Tensor, value: Tensor) -> str | None:
    if any(x.requires_grad for x in (query, key, value)):  # only where gradients are on
        return "gradients are taken, and the kernels have none"
    if query.device.type == "meta":  # stands for a GPU that has everything
        return _misfit(query, value)
    if not _has_triton():
        return "the triton package is not installed (it comes with PyTorch for CUDA)"
    if query.device.type == "cpu":
        # The interpreter is for tests and takes minutes: only by name.
        interpreted = kernels == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else "the model is on the CPU, and they need a GPU"
    if query.device.type != "cuda":
        return f"the model is on {query.device.type}, and they need CUDA or ROCm"
    if torch.version.hip is None and capability(query.device.index) < (8, 0):
        return "the GPU is older than Ampere (compute capability 8.0)"
    return _misfit(query, value)


def _misfit(query: Tensor, value: Tensor) -> str | None:
    if query.dtype not in HALF:
        # Tiles of float32 spill registers and use no tensor cores.
        return f"the model is in {str(query.dtype).removeprefix('torch.')}, not in half precision"
    largest = max(query.shape[-1], value.shape[-1])
    return f"heads of {largest} dimensions are too wide" if largest > LARGEST_HEAD else None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
