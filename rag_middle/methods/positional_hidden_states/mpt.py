"""Positional hidden states for MPT, whose ALiBi attention keeps away from the common interface.

MPT projects queries, keys and values in one matrix and adds its position bias to the scores, so
scaled channels reach its queries and keys through that projection's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention import Layer, LayerChange, LayerHandler
from rag_middle.methods.positional_hidden_states.attention import ChannelScaling


@dataclass(frozen=True, slots=True)
class MptChannelScaling(LayerChange):
    """`ChannelScaling` of an MPT model."""

    claims = frozenset({"hidden"})
    answers_attention = False

    scaling: ChannelScaling

    def start(self, layer: Layer) -> LayerHandler:
        return _MptChannels(layer, self.scaling)


class _MptChannels(LayerHandler):
    """Scales channels in one MPT attention module during one request.

    Rows that attend with scaled queries and keys come from a second run of the module: twice the
    attention of a prompt in the chosen layers, and no extra cost for generated tokens.
    """

    def __init__(self, layer: Layer, scaling: ChannelScaling) -> None:
        module = layer.module
        self._layer = layer
        self._projection: nn.Module = module.Wqkv  # type: ignore[assignment]
        self._scaling = scaling
        self._hidden: Tensor | None = None
        self._unscaled: Tensor | None = None
        self._columns: Tensor | None = None
        layer.hook(module.register_forward_hook, self._after)
        layer.hook(self._projection.register_forward_hook, self._project)

    def before(self, arguments: dict[str, Any]) -> None:
        """First run the rows that stay as they are."""
        hidden: Tensor = arguments["hidden_states"]
        self._layer.begin_call(arguments)
        self._layer.request.see(hidden.shape[0], hidden.shape[1], self._layer.start)
        # A pass that was interrupted leaves them behind; the plain run must find nothing to scale.
        self._hidden = self._unscaled = None
        if self._scaled_rows(hidden.shape[1]) < hidden.shape[1]:
            # Not module(...): this run must not come back here. The mask of a static cache is as
            # long as that.
            forward, mask = self._layer.module.forward, arguments.get("attention_mask")
            plain = {"past_key_values": None}
            if mask is not None:
                plain["attention_mask"] = mask[..., : hidden.shape[1]]
            self._unscaled = forward(**(arguments | plain))[0]
        if self._columns is None:
            self._columns = self._unit_columns(hidden)
        self._hidden = hidden

    def _project(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Forward hook of ``Wqkv``: add ``(s - 1) h_t (x) W[:, t]`` to queries and keys."""
        hidden = self._hidden
        if hidden is None or self._columns is None:
            return None
        steps = hidden[..., list(self._scaling.channels)] * (self._scaling.factor - 1)
        start, n = self._layer.start, hidden.shape[1]
        columns = torch.arange(start, start + n, device=hidden.device)[None, :]
        if not self._scaling.scale_generated:
            steps = steps.masked_fill((columns >= self._layer.request.width)[..., None], 0)
        query, key, value = torch.chunk(steps @ self._columns, 3, dim=-1)
        if self._scaling.skip_first:
            first = self._layer.request.paddings(hidden.device)[:, None] + self._scaling.skip_first
            kept = (columns < first)[..., None]
            key, value = key.masked_fill(kept, 0), value.masked_fill(kept, 0)
            if self._scaling.last_tokens is None:
                query = query.masked_fill(kept, 0)
        if not self._scaling.scale_values:
            value = torch.zeros_like(value)
        return output + torch.cat((query, key, value), dim=-1)

    def _after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Forward hook: the scaled run's last rows, the plain run's others."""
        assert self._hidden is not None
        n = self._hidden.shape[1]
        rows = self._scaled_rows(n)
        self._layer.end_call(n)
        self._hidden = None
        if self._unscaled is None:
            return None
        merged = torch.cat((self._unscaled[:, : n - rows], output[0][:, n - rows :]), dim=1)
        self._unscaled = None
        return (merged, *output[1:])

    def _scaled_rows(self, n: int) -> int:
        """Rows of this call, counted from its end, that attend with scaled queries and keys."""
        last = self._scaling.last_tokens
        if last is None or self._layer.start >= self._layer.request.width:
            return n
        return min(n, self._layer.start + n - self._layer.request.width + last)

    def _unit_columns(self, hidden: Tensor) -> Tensor:
        """Projections of the unit vectors, `[C, 3 hidden]`."""
        channels = self._scaling.channels
        probes = hidden.new_zeros(1 + len(channels), hidden.shape[-1])
        for row, channel in enumerate(channels):
            probes[1 + row, channel] = 1
        self._hidden = None
        projected: Tensor = self._projection(probes)
        return projected[1:] - projected[:1]
