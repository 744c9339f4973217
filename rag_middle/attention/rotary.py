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

from rag_middle.attention.seam import parameters
from rag_middle.ops.rope import RotaryStyle, WideTables, wide_tables

__all__ = ["RotaryCall", "RotaryTables", "TableFormat", "pair_tables"]

#: Positions (over all scales) up to which tables are made in one go.
_TOGETHER = 1024

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
        scales: scales that layers will ask for in this pass, as far as known.
    """

    module: nn.Module
    x: Tensor
    position_ids: Tensor
    extra: tuple[Any, ...]
    scales: tuple[float, ...] = ()
    _scaled: dict[float, Any] = field(default_factory=dict)
    _wide: dict[tuple[tuple[float, ...], TableFormat, RotaryStyle], WideTables] = field(
        default_factory=dict
    )

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
            wanted = (*self.scales, scale) if scale not in self.scales else self.scales
            # A generated token's tables are tiny: one launch for all layers' scales. A prompt's
            # are not: made when a layer asks, and shared by layers of the same scale.
            if len(wanted) * self.position_ids.shape[-1] > _TOGETHER or len(wanted) == 1:
                self._scaled[scale] = self.at(self.position_ids.float() / scale)
            else:
                self._make_together(wanted)
        return self._scaled[scale]

    def _make_together(self, scales: tuple[float, ...]) -> None:
        tables = self.at(self._positions_at(scales))
        if isinstance(tables, Tensor):
            self._scaled.update(zip(scales, tables.chunk(len(scales)), strict=True))
            return
        cos, sin = tables
        chunks = zip(cos.chunk(len(scales)), sin.chunk(len(scales)), strict=True)
        self._scaled.update(zip(scales, chunks, strict=True))

    def _positions_at(self, scales: tuple[float, ...]) -> Tensor:
        """``position_ids`` on every scale, `[scales * b, n]`."""
        divisors = torch.tensor(scales, device=self.position_ids.device)[:, None, None]
        return (self.position_ids.float()[None] / divisors).flatten(0, 1)

    def wide(
        self, scales: tuple[float, ...], table_format: TableFormat, style: RotaryStyle
    ) -> WideTables:
        """Tables for `rotate_wide` on every one of these scales, made once per forward pass.

        Returns:
            Cosine and sine `[scales, b or 1, n, 2r]`.
        """
        key = (scales, table_format, style)
        if key not in self._wide:
            cos, sin = self.at(self._positions_at(scales))
            tables = wide_tables(*pair_tables(cos, sin, table_format), style)
            shape = (len(scales), -1)
            self._wide[key] = WideTables(*(table.unflatten(0, shape) for table in tables))
        return self._wide[key]


class RotaryTables:
    """The rotary calls of the forward pass under way, by layer type."""

    def __init__(self) -> None:
        self._calls: dict[str | None, RotaryCall] = {}
        #: Position scales that the plan names, so that small tables can be made together.
        self.scales: tuple[float, ...] = ()

    def record(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any
    ) -> None:
        """Forward hook of a rotary module."""
        names = parameters(type(module).forward)
        named = dict(zip(names, args, strict=False)) | kwargs
        layer_type = named.get("layer_type")
        self._calls[layer_type] = RotaryCall(
            module=module,
            x=named[names[0]],
            position_ids=named["position_ids"],
            extra=() if layer_type is None else (layer_type,),
            scales=self.scales,
        )

    def of(self, layer_type: str | None) -> RotaryCall | None:
        """The call whose tables a layer of this type was given."""
        if layer_type in self._calls:
            return self._calls[layer_type]
        return self._calls.get(None) or next(iter(self._calls.values()), None)
