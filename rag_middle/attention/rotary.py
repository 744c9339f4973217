"""Cosine and sine tables of a model's own rotary embedding, at any positions.

The model's rotary module is asked, never imitated: RoPE variants (linear, dynamic, yarn, llama3,
longrope, per layer type) stay exactly what the model computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rag_middle.attention.seam import parameters, uncompiled
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.ops.rope import RotaryStyle, TableFormat, WideTables, wide_tables

T = TypeVar("T")

#: Positions (over all scales) up to which tables are made in one go.
_TOGETHER = 1024


def pair_tables(cos: Tensor, sin: Tensor, table_format: TableFormat) -> tuple[Tensor, Tensor]:
    """One cosine and sine per pair, ``[..., n, r]``, from a model's own table format."""
    if table_format == "halves":
        half = cos.shape[-1] // 2
        return cos[..., :half], sin[..., :half]
    if table_format == "repeated":
        return cos[..., 0::2], sin[..., 0::2]
    return cos, sin


def own_heads(turned: Tensor) -> Tensor:
    """Each head rotated by its own table, `[b, heads, n, d]`: a view.

    A rotation by tables with an axis in front rotates every head by every table. That computes
    more and launches nothing, which is what one token's rotation costs.

    Args:
        turned: `[h, 1, b, heads, n, d]` of `h` tables, for query heads or the key heads of their
            groups; or `[1, 1, b, heads, n, d]`, each head rotated by its own already.
    """
    tables, _, b, heads, n, d = turned.shape
    table, _, row, head, token, part = turned.stride()
    # One view, not four: a token's time here is the number of its operations.
    return turned.as_strided((b, heads, n, d), (row, table * (tables // heads) + head, token, part))


class _Rebased:
    """A rotary module whose frequencies are those of another base.

    Pair ``i`` of ``r`` turns by ``base ** (-i / r)`` per position, so multiplying the base by a
    factor multiplies that frequency by ``factor ** (-i / r)``, whatever else a RoPE variant did
    to it.
    """

    def __init__(self, module: nn.Module, factor: float) -> None:
        self._module = module
        self._factor = factor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name == "rope_init_fn":  # phimoe makes its frequencies anew in every pass
            return self._rebasing(value)
        return self._rebased(value) if name.endswith("inv_freq") else value

    def _rebasing(self, make: Callable[..., tuple[Tensor, float]]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> tuple[Any, float]:
            frequencies, factor = make(*args, **kwargs)
            return self._rebased(frequencies), factor

        return made

    def _rebased(self, frequencies: Any) -> Any:
        if not isinstance(frequencies, Tensor):
            return frequencies
        pairs = frequencies.shape[-1]
        of_pair = torch.arange(pairs, device=frequencies.device, dtype=torch.float32)
        return frequencies * self._factor ** (-of_pair / pairs)


class LayerStack:
    """A tensor of each of several layers, alike in shape, for operations on all of them at once.

    A generated token is as fast as its operations are launched: one for all layers, not one each.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Tensor] = {}
        self._stacked: Tensor | None = None

    def put(self, layer: int, part: Tensor) -> None:
        """Add a layer's tensor, or replace it."""
        self._parts[layer] = part
        self._stacked = None

    @property
    def layers(self) -> list[int]:
        """In the order of `stacked`."""
        return list(self._parts)

    @property
    def stacked(self) -> Tensor:
        """All tensors, `[layers, ...]`."""
        if self._stacked is None:
            self._stacked = torch.stack(list(self._parts.values()))
        return self._stacked


@dataclass(slots=True)
class RotaryCall:
    """One call of a rotary module, as the model made it in the forward pass under way.

    Attributes:
        module: the rotary embedding module.
        x: tensor that gave the call its dtype and device.
        position_ids: ``[b or 1, n]``.
        extra: further arguments (the layer type, where a model has several frequencies).
        scales: scales that layers will ask for in this pass, as far as known.
        lasting: tensors that outlast the pass: made once per request.
    """

    module: nn.Module
    x: Tensor
    position_ids: Tensor
    extra: tuple[Any, ...]
    scales: tuple[float, ...] = ()
    lasting: dict[Hashable, Any] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def at(self, positions: Tensor, *, base_factor: float = 1.0) -> Any:
        """Tables at other, possibly fractional, positions ``[b, n]``, in the model's format:
        cosine and sine for nearly every family, one complex tensor for a few.

        Frequencies stay those of the model's own call: the part of the module that re-derives
        them from the largest position (dynamic NTK, longrope) is stepped over. `base_factor`
        multiplies the base that they are powers of.

        Raises:
            UnsupportedGenerationError: the model's own positions are of several axes, and differ.
        """
        own = self.position_ids
        has_axes = positions.ndim < own.ndim
        if has_axes and own.shape[-1] > 1 and bool((own != own[:1]).any()):
            raise UnsupportedGenerationError(
                "Tokens of this prompt stand on several axes (those of a picture), and the method "
                "gives them places on one. Leave the picture out, or use a method that keeps "
                "positions or scales them."
            )
        forward: Callable[..., Any] = inspect.unwrap(type(self.module).forward)
        module = self.module if base_factor == 1 else _Rebased(self.module, base_factor)
        if has_axes:  # the same on each
            positions = positions.expand(len(own), *positions.shape)
        with torch.no_grad():
            tables = forward(module, self.x, positions, *self.extra)
        if has_axes and tables[0].ndim == positions.ndim + 1:  # older transformers: one per axis
            tables = tuple(table[0] for table in tables)
        return tables

    def pairs_at(
        self, positions: Tensor, style: RotaryStyle, *, base_factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """One cosine and sine per pair at these positions, `[b, n, r]`; see `at`."""
        cos, sin = self.at(positions, base_factor=base_factor)
        return pair_tables(cos, sin, style.table_format)

    def rotations(self, moves: Tensor, style: RotaryStyle) -> tuple[Tensor, Tensor]:
        """Tables `[n, r]` in float32 by which what is rotated already moves on by `moves` `[n]`.

        Yarn-like variants multiply a factor into their tables, which that has: these have none.
        """
        positions = torch.cat((moves.new_zeros(1), moves))[None].to(self.x.device)
        cos, sin = (table[0].float() for table in self.pairs_at(positions, style))
        return cos[1:] / cos[:1], sin[1:] / cos[:1]

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made once per forward pass for all who say `key`."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def rebased_rows(self, factors: tuple[float, ...]) -> Any:
        """The call's own tables with another base in every row, made once per forward pass.

        Args:
            factors: one per row of the batch.

        Returns:
            Tables `[b, n, ...]` in the model's format.
        """

        def make() -> Any:
            by_factor = {
                factor: self.at(self.position_ids, base_factor=factor)
                for factor in dict.fromkeys(factors)
            }
            rows = [by_factor[factor] for factor in factors]
            if isinstance(rows[0], Tensor):
                return _rows_of(rows)
            return tuple(map(_rows_of, zip(*rows, strict=True)))

        return self._once(("rows", factors), make)

    def rebased_wide(
        self, factor: float, name: Hashable, positions: Callable[[], Tensor], style: RotaryStyle
    ) -> WideTables:
        """Tables for `rotate_wide` with another base, made once per forward pass.

        Args:
            factor: what the base is multiplied by.
            name: of the positions.
            positions: makes them, `[b or 1, n]`.
            style: of the layer.

        Returns:
            Cosine and sine `[b or 1, n, 2r]`.
        """
        return self._once(
            ("rebased", factor, name, style),
            lambda: wide_tables(*self.pairs_at(positions(), style, base_factor=factor), style),
        )

    @property
    def follows_length(self) -> bool:
        """Whether frequencies may change with the length of the input (dynamic NTK, longrope)."""
        kind = getattr(self.module, "rope_type", None)
        if isinstance(kind, dict) and self.extra:
            kind = kind.get(self.extra[0])
        return not isinstance(kind, str) or kind in ("dynamic", "longrope")

    def rebased_distances(
        self, factors: tuple[float, ...], columns: int, style: RotaryStyle
    ) -> tuple[Tensor, Tensor]:
        """Tables of the distances to each of the last `columns` tokens, oldest first.

        What a RoPE variant multiplies into its tables (yarn, longrope) is in these twice, as it is
        in the product of a rotated query and a rotated key. Made with room to grow: further tokens
        of a request make no tables, unless frequencies follow the length.

        Args:
            factors: what the base is multiplied by.
            columns: tokens, the newest of them at distance 0.
            style: of the layer.

        Returns:
            Cosine and sine `[columns, factors, r]`.
        """
        key = ("distances", factors, style, id(self.module), self.extra)
        kept = self._made if self.follows_length else self.lasting
        if key not in kept or kept[key][0].shape[0] < columns:
            room = 1 << (columns - 1).bit_length()
            distances = torch.arange(room - 1, -1, -1, device=self.x.device)[None]
            pairs = [self.pairs_at(distances, style, base_factor=factor) for factor in factors]
            cos, sin = (torch.cat(tables).transpose(0, 1) for tables in zip(*pairs, strict=True))
            factor = cos[-1:]  # of the distance 0
            kept[key] = ((cos * factor).contiguous(), (sin * factor).contiguous())
        cos, sin = kept[key]
        return cos[-columns:], sin[-columns:]

    def of_layer(
        self,
        layer: int,
        stack: LayerStack,
        make: Callable[[Tensor], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """A layer's parts of ``make(stack.stacked)``, made once per forward pass.

        Args:
            layer: its index.
            stack: to which every layer adds its tensor as it first runs.
            make: returns tensors `[layers, ...]`.
        """
        parts: dict[int, tuple[Tensor, ...]] = self._made.get(stack, {})
        if layer not in parts:
            made = zip(*(tensor.unbind() for tensor in make(stack.stacked)), strict=True)
            parts = dict(zip(stack.layers, made, strict=True))
            self._made[stack] = parts
        return parts[layer]

    def scaled(self, scale: float) -> Any:
        """Tables at ``position_ids / scale``, made once per forward pass."""
        key = ("scaled", scale)
        if key not in self._made:
            scales = (*self.scales, scale) if scale not in self.scales else self.scales
            # A generated token's tables are tiny: one launch for all layers' scales. A prompt's
            # are not: made when a layer asks, and shared by layers of the same scale.
            if len(scales) * self.position_ids.shape[-1] > _TOGETHER or len(scales) == 1:
                self._made[key] = self.at(self.position_ids.float() / scale)
            else:
                tables = self.at(self._positions_at(scales))
                whole = (tables,) if isinstance(tables, Tensor) else tables
                parts = zip(*(table.chunk(len(scales)) for table in whole), strict=True)
                for each_scale, part in zip(scales, parts, strict=True):
                    single = isinstance(tables, Tensor)
                    self._made["scaled", each_scale] = part[0] if single else part
        return self._made[key]

    def named(self, name: Hashable, positions: Callable[[], Tensor]) -> Any:
        """Tables at ``positions()`` `[b, n]`, made once per forward pass for all who say `name`."""
        return self._once(("named", name), lambda: self.at(positions().to(self.x.device)))

    def _positions_at(self, scales: tuple[float, ...]) -> Tensor:
        """``position_ids`` on every scale, `[scales * b, n]`.

        Models that see pictures give a token a place on each of three axes: `[3, scales * b, n]`.
        """
        key = (scales, self.position_ids.device)
        if key not in self.lasting:
            self.lasting[key] = torch.tensor(
                scales, device=self.position_ids.device, dtype=torch.float32
            )
        divisors: Tensor = self.lasting[key]
        scaled = self.position_ids.float().unsqueeze(-3) / divisors[:, None, None]
        return scaled.flatten(-3, -2)

    def at_scales(self, scales: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Cosine and sine on every one of these scales, `[scales, b or 1, n, w]`."""
        cos, sin = self.at(self._positions_at(scales))
        shape = (len(scales), -1)
        return cos.unflatten(0, shape), sin.unflatten(0, shape)

    def wide(self, scales: tuple[float, ...], style: RotaryStyle) -> WideTables:
        """Tables for `rotate_wide` on every one of these scales, made once per forward pass.

        Returns:
            Cosine and sine `[scales, b or 1, n, 2r]`.
        """
        return self._once(
            ("wide", scales, style),
            lambda: self._several(self._positions_at(scales), len(scales), style),
        )

    def wide_of(self, tables: Any, style: RotaryStyle) -> WideTables:
        """The model's own cosine and sine as tables for `rotate_wide`, made once per forward pass.

        Returns:
            Cosine and sine `[b or 1, n, 2r]`.
        """
        cos, sin = tables
        # The table is kept beside what is made of it: its id stays its own.
        return self._once(("of", id(cos), style), lambda: (cos, self._widened(cos, sin, style)))[1]

    def _widened(self, cos: Tensor, sin: Tensor, style: RotaryStyle) -> WideTables:
        if style.table_format != ("halves" if style.pairing == "half" else "repeated"):
            return wide_tables(*pair_tables(cos, sin, style.table_format), style)
        # As wide as they have to be: one operation instead of three, for each generated token.
        key = ("signs", style, sin.dtype, sin.device)
        if key not in self.lasting:
            signs = sin.new_ones(2 * style.pairs)
            signs[slice(style.pairs) if style.pairing == "half" else slice(0, None, 2)].neg_()
            self.lasting[key] = signs
        return WideTables(cos, sin * self.lasting[key])

    def wide_by_column(
        self,
        name: Hashable,
        several: int,
        positions: Callable[[range], Tensor],
        columns: range,
        style: RotaryStyle,
        *,
        reach: int,
    ) -> WideTables:
        """Tables for `rotate_wide` at several positions per token, made with room to grow.

        Further tokens of a request make no tables, unless frequencies follow the length.

        Args:
            name: of these positions; who asks by the same name gets the same tables.
            several: how many positions a token has.
            positions: makes those of columns, `[several * b, columns]`.
            columns: of the call.
            style: of the model.
            reach: columns to make tables for, at least up to the call's last.

        Returns:
            Cosine and sine `[several, b or 1, columns, 2r]`.
        """
        if self.follows_length:
            return self._once(
                ("columns", name, style), lambda: self._several(positions(columns), several, style)
            )
        key = ("columns", name, id(self.module), self.extra, style)
        kept = self.lasting.get(key)
        if kept is None or kept.cos.shape[2] < columns.stop:
            kept = self._several(positions(range(reach)), several, style)
            self.lasting[key] = kept
        return WideTables(*(table[:, :, columns.start : columns.stop] for table in kept))

    def _several(self, positions: Tensor, several: int, style: RotaryStyle) -> WideTables:
        cos, sin = self.at(positions)
        tables = self._widened(cos, sin, style)
        return WideTables(*(table.unflatten(0, (several, -1)) for table in tables))


class RotaryTables:
    """The rotary calls of the forward pass under way, by layer type and by module."""

    def __init__(self) -> None:
        self._calls: dict[str | int | None, RotaryCall] = {}
        self._scales: dict[float, None] = {}
        self._lasting: dict[Hashable, Any] = {}

    def expect(self, scale: float) -> None:
        """Say that a layer will ask for this scale: small tables are then made together."""
        self._scales[scale] = None

    def record(
        self,
        number: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        _output: Any,
    ) -> None:
        """Forward hook of a rotary module, bound to its `number` among those of the model."""
        module = uncompiled(module)
        names = parameters(type(module).forward)
        named = dict(zip(names, args, strict=False)) | kwargs
        layer_type = named.get("layer_type")
        self._calls[number] = self._calls[layer_type] = RotaryCall(
            module=module,
            x=named[names[0]],
            position_ids=named["position_ids"],
            extra=() if layer_type is None else (layer_type,),
            scales=tuple(self._scales),
            lasting=self._lasting,
        )

    def of(self, layer_type: str | int | None) -> RotaryCall | None:
        """The call whose tables a layer of this type, or of this rotary module, was given."""
        if layer_type in self._calls:
            return self._calls[layer_type]
        return self._calls.get(None) or next(iter(self._calls.values()), None)


def on_device(tables: Any, device: torch.device) -> Any:
    """Rotary tables where a layer computes: models may be spread over several devices."""
    if isinstance(tables, Tensor):
        return tables.to(device)
    return tuple(table.to(device) for table in tables)


def _rows_of(tables: Sequence[Tensor]) -> Tensor:
    """Row ``i`` from table ``i``, each `[b or 1, n, ...]`."""
    return torch.stack([table[min(row, len(table) - 1)] for row, table in enumerate(tables)])


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that make cosine and sine tables from positions.

    Where one is compiled by itself, what was made of it: compiled code passes by the hooks inside.
    """
    rotary = [m for m in model.modules() if "RotaryEmb" in type(uncompiled(m)).__name__]
    compiled = {uncompiled(module) for module in rotary if uncompiled(module) is not module}
    return [module for module in rotary if module not in compiled]


#: By rotary module: the frequencies that each open block began with, the oldest block first.
_of_open_blocks: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


@contextmanager
def keep_frequencies(model: nn.Module) -> Iterator[None]:
    """Undo what dynamic NTK leaves in a model: the frequencies of the longest input so far.

    Later prompts that are longer than the original length would be read with them. A block that
    ends before one that began within it, as in generators, leaves the undoing to that.
    """
    modules = map(uncompiled, rotary_modules(model))
    dynamic = [m for m in modules if "dynamic" in str(getattr(m, "rope_type", ""))]
    before = [stored_frequencies(module) for module in dynamic]
    for module, state in zip(dynamic, before, strict=True):
        _of_open_blocks.setdefault(module, []).append(state)
    try:
        yield
    finally:
        for module, state in zip(dynamic, before, strict=True):
            states = _of_open_blocks[module]
            index = next(i for i, other in enumerate(states) if other is state)
            if index == len(states) - 1:
                for name in stored_frequencies(module).keys() - state.keys():
                    delattr(module, name)  # lengths by layer type, which a long input adds
                for name, value in state.items():
                    setattr(module, name, value)
            else:  # the next block began with what the model wrote in this one
                states[index + 1].clear()
                states[index + 1].update(state)
            del states[index]


def stored_frequencies(rotary: nn.Module) -> dict[str, Any]:
    """What a rotary module makes its tables from, by name; empty where it only looks them up."""
    endings = ("inv_freq", "max_seq_len_cached", "attention_scaling")
    # Two names may share one tensor, as after a first long input.
    buffers = rotary.named_buffers(recurse=False, remove_duplicate=False)
    state = {**vars(rotary), **dict(buffers)}
    return {name: value for name, value in state.items() if name.endswith(endings)}
