"""Which kernels compute: those that methods bring, in Triton, or PyTorch's operators."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.errors import KernelsUnavailableError
from rag_middle.ops.flash import HALF, LARGEST_HEAD, capability
from rag_middle.options import Kernels


class KernelWork(NamedTuple):
    """What one call of a custom operator asks of a GPU.

    Attributes:
        flops: multiplications and additions of its matrix products.
        bytes: read and written.
        launches: kernels.
    """

    flops: int
    bytes: int
    launches: int


#: By the operator's name: its work, from the arguments of a call and what it returned. They may be
#: tensors without numbers.
KERNEL_WORK: dict[str, Callable[..., KernelWork]] = {}


def uses_triton(
    kernels: Kernels, query: Tensor, value: Tensor, obstacle: str | None = None
) -> bool:
    """Whether Triton kernels run on such tensors.

    Args:
        kernels: what was asked for.
        query: `[..., d]`.
        value: `[..., dv]`.
        obstacle: why the method's kernels cannot run, whatever the tensors are like.

    Raises:
        KernelsUnavailableError: they were asked for and cannot run.
    """
    if kernels == "torch":
        return False
    reason = obstacle or _obstacle(query, value)
    if reason is not None and kernels == "triton":
        raise KernelsUnavailableError(
            f"kernels='triton' cannot run here: {reason}. Use kernels='auto', which computes with "
            "PyTorch's operators where Triton kernels cannot run."
        )
    # The interpreter is for tests and takes minutes: only by name.
    return reason is None and (kernels == "triton" or query.device.type != "cpu")


def _obstacle(query: Tensor, value: Tensor) -> str | None:
    if query.requires_grad:  # only where gradients are on
        return "gradients are taken, and the kernels have none"
    if query.device.type == "meta":  # stands for a GPU that has everything
        return _misfit(query, value)
    if not _has_triton():
        return "the triton package is not installed (it comes with PyTorch for CUDA)"
    if query.device.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
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
