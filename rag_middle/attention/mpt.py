"""Positional hidden states for MPT, whose ALiBi attention keeps away from the common interface.

MPT projects queries, keys and values in one matrix and adds its position bias to the scores, so
scaled channels reach its queries and keys through that projection's output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.plan import ChannelScaling
from rag_middle.attention.request import Request
from rag_middle.attention.seam import AttentionCall, begins_prompt, keyword_arguments

__all__ = ["MptChannelCore", "mpt_attention_modules"]


def mpt_attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Attention modules of an MPT model by layer."""
    modules = [m for m in model.modules() if type(m).__name__ == "MptAttention"]
    return dict(enumerate(modules))


class MptChannelCore:
    """Scales channels in one MPT attention module during one request.

    Rows that attend with scaled queries and keys come from a second run of the module: twice the
    attention of a prompt in the chosen layers, and no extra cost for generated tokens.
    """

    def __init__(self, module: nn.Module, scaling: ChannelScaling, request: Request) -> None:
        self._projection: nn.Module = module.Wqkv  # type: ignore[assignment]
        self._scaling = scaling
        self._request = request
        self._cached_columns = 0
        self._hidden: Tensor | None = None
        self._unscaled: Tensor | None = None
        self._columns: Tensor | None = None

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Part of the handler protocol; MPT never calls the attention interface."""
        raise AssertionError("MPT attention does not go through the attention interface")

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: first run the rows that stay as they are."""
        arguments = keyword_arguments(module, args, kwargs)
        hidden: Tensor = arguments["hidden_states"]
        layer: int = module.layer_idx  # type: ignore[assignment]
        if begins_prompt(
            arguments.get("past_key_values"), layer, hidden.shape[1], self._request.width
        ):
            self._cached_columns = 0
        self._request.see(hidden.shape[0], hidden.shape[1], self._cached_columns)
        self._request.attention_calls += 1
        # A pass that was interrupted leaves them behind; the plain run must find nothing to scale.
        self._hidden = self._unscaled = None
        if self._scaled_rows(hidden.shape[1]) < hidden.shape[1]:
            # Not module(...): this run must not come back here.
            self._unscaled = module.forward(**(arguments | {"past_key_values": None}))[0]
        if self._columns is None:
            self._columns = self._unit_columns(hidden)
        self._hidden = hidden
        return (), arguments

    def project(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Forward hook of ``Wqkv``: add ``(s - 1) h_t (x) W[:, t]`` to queries and keys."""
        hidden = self._hidden
        if hidden is None or self._columns is None:
            return None
        steps = hidden[..., list(self._scaling.channels)] * (self._scaling.factor - 1)
        start, n = self._cached_columns, hidden.shape[1]
        columns = torch.arange(start, start + n, device=hidden.device)[None, :]
        if not self._scaling.scale_generated:
            steps = steps.masked_fill((columns >= self._request.width)[..., None], 0)
        query, key, value = torch.chunk(steps @ self._columns, 3, dim=-1)
        if self._scaling.skip_first:
            first = self._request.paddings(hidden.device)[:, None] + self._scaling.skip_first
            kept = (columns < first)[..., None]
            key, value = key.masked_fill(kept, 0), value.masked_fill(kept, 0)
            if self._scaling.last_tokens is None:
                query = query.masked_fill(kept, 0)
        if not self._scaling.scale_values:
            value = torch.zeros_like(value)
        return output + torch.cat((query, key, value), dim=-1)

    def after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Forward hook: the scaled run's last rows, the plain run's others."""
        assert self._hidden is not None
        n = self._hidden.shape[1]
        rows = self._scaled_rows(n)
        self._cached_columns += n
        self._hidden = None
        if self._unscaled is None:
            return None
        merged = torch.cat((self._unscaled[:, : n - rows], output[0][:, n - rows :]), dim=1)
        self._unscaled = None
        return (merged, *output[1:])

    def _scaled_rows(self, n: int) -> int:
        """Rows of this call, counted from its end, that attend with scaled queries and keys."""
        last = self._scaling.last_tokens
        if last is None or self._cached_columns >= self._request.width:
            return n
        return min(n, self._cached_columns + n - self._request.width + last)

    def _unit_columns(self, hidden: Tensor) -> Tensor:
        """Projections of the unit vectors, `[C, 3 hidden]`."""
        channels = self._scaling.channels
        probes = hidden.new_zeros(1 + len(channels), hidden.shape[-1])
        for row, channel in enumerate(channels):
            probes[1 + row, channel] = 1
        self._hidden = None
        projected: Tensor = self._projection(probes)
        return projected[1:] - projected[:1]
