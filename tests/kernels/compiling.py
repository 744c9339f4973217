"""Compile Triton kernels for GPUs that are not there, with the arguments of real launches."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

#: Bytes of shared memory that a block may have, by compute capability.
SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages")


class Compiled(NamedTuple):
    """A kernel for one GPU.

    Attributes:
        name: of the kernel.
        registers: per thread.
        spilled: bytes of a thread's registers that lie in memory.
        shared: bytes of shared memory.
        products: matrix instructions of tensor cores.
    """

    name: str
    registers: int
    spilled: int
    shared: int
    products: int


class Launched(NamedTuple):
    """One launch: the kernel and its arguments by name."""

    kernel: JITFunction
    arguments: dict[str, Any]


@contextmanager
def recorded_launches() -> Iterator[list[Launched]]:
    """Take launches down instead of doing them; tensors may be without numbers."""
    launches: list[Launched] = []

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launched(self, dict(zip(self.arg_names, args, strict=False)) | kwargs))

    before: Callable[..., Any] = JITFunction.run
    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = before


def compiled(launch: Launched, capability: int) -> Compiled:
    """As Triton would compile it at its first launch on such a GPU."""
    kernel, arguments = launch
    signature, constants, hints = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        if isinstance(value, Tensor):
            signature[parameter.name] = _POINTERS[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            hints[index,] = [["tt.divisibility", 16]]
    options = {name: arguments[name] for name in _OPTIONS if name in arguments}
    result = triton.compile(
        ASTSource(kernel, signature, constants, hints),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    usage = _resource_usage(result.asm["cubin"])
    return Compiled(
        kernel.__name__,
        usage["REG"],
        usage["STACK"] + usage["LOCAL"],
        result.metadata.shared,
        len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)\b", result.asm["ptx"])),
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What the kernel needs, as the assembler wrote it down."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        text = subprocess.run(
            [tool, "-res-usage", path], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
