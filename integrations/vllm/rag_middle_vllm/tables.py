"""Cosine and sine tables of vLLM's rotary modules for other positions.

The module is asked to make its table as it always does, and while it does so the product of
positions and frequencies is given others. So scalings (linear, dynamic, yarn, llama 3) and
attention factors stay the module's own; and where that product is not seen exactly once, or the
module's own table does not come out again, it is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rag_middle.attention import Rotation


class NotRotatableError(Exception):
    """A rotary module whose tables cannot be had for other positions; the message says why."""


class _OtherPositions(TorchFunctionMode):
    """Rotates by other positions and frequencies wherever a table is made inside the block.

    Args:
        rotation: positions are divided by its scale and the base multiplied by its factor.
        rows: how many positions, from 0 on; ``None`` for as many as the module wants.
    """

    def __init__(self, rotation: Rotation, rows: int | None = None) -> None:
        super().__init__()
        self.products = 0
        self._rotation = rotation
        self._rows = rows

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.einsum and args[0].replace(" ", "") == "i,j->ij":
            self.products += 1
            args = (args[0], self._positions(args[1]), self._frequencies(args[2]))
        elif func is torch.outer:
            self.products += 1
            args = (self._positions(args[0]), self._frequencies(args[1]))
        return func(*args, **(kwargs or {}))

    def _positions(self, positions: Tensor) -> Tensor:
        if self._rows is not None:
            longer = self._rows - len(positions)
            if longer > 0:  # the window that position interpolation opens may be the longer one
                step = positions[1] - positions[0]
                beyond = torch.arange(len(positions), self._rows, dtype=positions.dtype) * step
                positions = torch.cat((positions, beyond))
            positions = positions[: self._rows]
        # Positions and not frequencies: a divided frequency is rounded, and the rounding grows
        # with the position (1.5e-2 in log-probabilities).
        return positions / self._rotation.scale if self._rotation.scale != 1 else positions

    def _frequencies(self, frequencies: Tensor) -> Tensor:
        factor, pairs = self._rotation.base_factor, len(frequencies)
        if factor == 1:
            return frequencies
        return frequencies * factor ** (-torch.arange(pairs, dtype=torch.float32) / pairs)


def rotated_copy(module: nn.Module, rotation: Rotation, rows: int | None) -> nn.Module:
    """A copy of a rotary module with a table for other positions; the module stays as it is.

    Args:
        module: with a table `[positions, r]` in `cos_sin_cache`.
        rotation: what the layer shall rotate by.
        rows: positions that a request can have; ``None`` for as many as the module has.

    Raises:
        NotRotatableError: it does not make its table in a way that is known.
    """
    kind, own = type(module).__name__, getattr(module, "cos_sin_cache", None)
    make = getattr(module, "_compute_cos_sin_cache", None)
    if not isinstance(own, Tensor) or make is None:
        raise NotRotatableError(f"{kind} keeps no single table of cosines and sines")
    if not torch.equal(_made(module, make, Rotation(), None).to(own.dtype), own):
        raise NotRotatableError(f"{kind} does not make its own table again")
    table = _made(module, make, rotation, rows).to(own.dtype)
    # What the copy takes over as it is would keep the old positions. Known to be kept beside the
    # table: its bfloat16 twin, for kernels of AMD GPUs.
    replaced: dict[int, Any] = {id(own): table}
    for name, buffer in module.named_buffers():
        if buffer is own or buffer.shape[:1] != own.shape[:1]:
            continue
        if not torch.equal(buffer, own.to(buffer.dtype)):
            raise NotRotatableError(f"{kind} keeps a second table, {name!r}")
        replaced[id(buffer)] = table.to(buffer.dtype)
    return copy.deepcopy(module, replaced)


def _made(
    module: nn.Module, make: Callable[[], Tensor], rotation: Rotation, rows: int | None
) -> Tensor:
    """The table that the module makes, as at its construction but for the positions."""
    from vllm.utils.torch_utils import set_default_torch_dtype

    device: torch.device = module.cos_sin_cache.device  # type: ignore[assignment]
    dtype: torch.dtype = module.dtype  # type: ignore[assignment]
    with set_default_torch_dtype(dtype), device, _OtherPositions(rotation, rows) as products:
        table = make()
    if products.products != 1:
        raise NotRotatableError(
            f"{type(module).__name__} makes its table from {products.products} products of "
            "positions and frequencies, not from one"
        )
    return table


def prove_rotated(module: nn.Module, changed: nn.Module) -> None:
    """Run both on one random query and key: rotated alike at position 0, and not at the last.

    Raises:
        NotRotatableError: the copy does what the original does, or something else altogether.
    """
    bound = getattr(getattr(changed, "_forward_method", None), "__self__", changed)
    if bound is not changed:
        raise NotRotatableError(f"{type(module).__name__} runs code of the original in its copy")
    table: Tensor = module.cos_sin_cache  # type: ignore[assignment]
    theirs: Tensor = changed.cos_sin_cache  # type: ignore[assignment]
    last = min(len(table), len(theirs)) - 1
    size: int = module.head_size  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(0)
    dtype: torch.dtype = module.dtype  # type: ignore[assignment]
    states = torch.randn(2, size, generator=generator).to(table.device, dtype)
    positions = torch.tensor([0, last], device=table.device)
    before, after = (
        torch.stack([*rotary(positions, states.clone(), states.clone())])
        for rotary in (module, changed)
    )
    if not torch.equal(before[:, 0], after[:, 0]):
        raise NotRotatableError(f"{type(module).__name__} rotates position 0 in its copy")
    if any(torch.equal(one[1], other[1]) for one, other in zip(before, after, strict=True)):
        raise NotRotatableError(f"{type(module).__name__} rotates in its copy as in the original")
