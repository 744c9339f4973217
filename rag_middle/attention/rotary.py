"""Cosine and sine tables of a model's own rotary embedding, at any positions.

The model's rotary module is asked, never imitated: RoPE variants (linear, dynamic, yarn, llama3,
longrope, per layer type) stay exactly what the model computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["RotaryCall", "RotaryTables", "TableFormat", "pair_tables"]

#: How a model lays out the angles of its pairs in a cosine table: each angle twice, as two halves
#: or side by side, or once.
TableFormat = Literal["halves", "repeated", "single"]


def pair_tables(cos: Tensor, sin: Tensor, table_format: TableFormat) -> tuple[Tensor, Tensor]:
    """One cosine and sine per pair, ``[..., n, r]``, from a model's own table format."""
    if table_format == "halves":
        half = cos.shape[-1] // 2
        return cos[..., :half], sin[..., :half]
    if table_format == "repeated":
        return cos[..., 0::2], sin[..., 0::2]
    return cos, sin


@dataclass(slots=True)
class RotaryCall:
    """One call of a rotary module, as the model made it in the forward pass under way.

    Attributes:
        module: the rotary embedding module.
        x: tensor that gave the call its dtype and device.
        position_ids: ``[b or 1, n]``.
        extra: further arguments (the layer type, where a model has several frequencies).
        output: what the model got: the cosine and sine tables.
    """

    module: nn.Module
    x: Tensor
    position_ids: Tensor
    extra: tuple[Any, ...]
    output: Any
    _scaled: dict[float, Any] = field(default_factory=dict)
    _stacked: dict[tuple[float, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def at(self, positions: Tensor) -> Any:
        """Tables at other, possibly fractional, positions ``[b, n]``, in the model's format:
        cosine and sine for nearly every family, one complex tensor for a few.

        Frequencies stay those of the model's own call: the part of the module that re-derives
        them from the largest position (dynamic NTK, longrope) is stepped over.
        """
        forward: Callable[..., Any] = inspect.unwrap(type(self.module).forward)
        with torch.no_grad():
            return forward(self.module, self.x, positions, *self.extra)

    def scaled(self, scale: float) -> Any:
        """Tables at ``position_ids / scale``, made once per forward pass."""
        if scale not in self._scaled:
            self._scaled[scale] = self.at(self.position_ids.float() / scale)
        return self._scaled[scale]

    def stacked(self, scales: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Tables at every one of these scales, `[scales, b or 1, n, ...]`, made once per pass."""
        if scales not in self._stacked:
            cos, sin = zip(*(self.scaled(scale) for scale in scales), strict=True)
            self._stacked[scales] = (torch.stack(cos), torch.stack(sin))
        return self._stacked[scales]


class RotaryTables:
    """The rotary calls of the forward pass under way, by layer type."""

    def __init__(self) -> None:
        self._calls: dict[str | None, RotaryCall] = {}

    def record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Forward hook of a rotary module."""
        names = list(inspect.signature(type(module).forward).parameters)[1:]
        named = dict(zip(names, args, strict=False)) | kwargs
        layer_type = named.get("layer_type")
        extra = () if layer_type is None else (layer_type,)
        self._calls[layer_type] = RotaryCall(
            module=module,
            x=named[names[0]],
            position_ids=named["position_ids"],
            extra=extra,
            output=output,
        )

    def of(self, layer_type: str | None) -> RotaryCall | None:
        """The call whose tables a layer of this type was given."""
        if layer_type in self._calls:
            return self._calls[layer_type]
        return self._calls.get(None) or next(iter(self._calls.values()), None)
