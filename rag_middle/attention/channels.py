"""Queries, keys and values of hidden states with scaled channels (positional hidden states)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rag_middle.attention.capture import capture
from rag_middle.attention.plan import ChannelScaling
from rag_middle.attention.rotary import pair_tables
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.rope import rotate

__all__ = ["ChannelScaler", "Projected", "scaled_hidden"]


class Projected(NamedTuple):
    """Queries of the last rows `[b, h, rows, d]`, keys and values of all tokens `[b, g, n, d]`."""

    query: Tensor
    key: Tensor
    value: Tensor


def scaled_hidden(hidden: Tensor, scaling: ChannelScaling) -> Tensor:
    """``h + (s - 1) h_t e_t`` for each chosen channel; `hidden` is `[b, n, hidden]`."""
    changed = hidden.clone()
    changed[..., list(scaling.channels)] *= scaling.factor
    return changed


@dataclass(slots=True)
class ChannelScaler:
    """Scaled queries, keys and values of one layer during one request.

    Where projections are affine, scaling a channel adds a rank-one term to what the module
    computed already: ``K + (s - 1) h_t (x) W_K[:, t]``, the column rotated to each position. The
    columns come from running the module on unit vectors, so fused, quantised or adapted layers
    need no code of their own. Elsewhere (norms between projection and rotation) the module
    projects the scaled hidden states a second time.
    """

    module: nn.Module
    traits: LayerTraits
    scaling: ChannelScaling
    #: Un-rotated projections of the unit vectors: queries' and keys' `[h + g, C, d]`, values'
    #: `[g, C, dv]`.
    _columns: tuple[Tensor, Tensor] | None = None

    def apply(
        self, arguments: dict[str, Any], plain: Projected, rows: int, keep: Tensor | None
    ) -> Projected:
        """Scaled counterparts of the module's own tensors.

        Args:
            arguments: the module's arguments by name, ``hidden_states`` `[b, n, hidden]` and the
                position embeddings in force among them.
            plain: what the module computed, queries of all tokens.
            rows: queries wanted, counted from the end.
            keep: tokens whose keys and values stay as they are, boolean `[b, n]`, or ``None``.
        """
        if self.traits.affine_projections and (
            not self.traits.uses_rope or self.traits.rotary is not None
        ):
            return self._rank_one(arguments, plain, rows, keep)
        hidden = scaled_hidden(arguments["hidden_states"], self.scaling)
        call = capture(self.module, arguments, hidden_states=hidden)
        key, value = call.key, call.value
        if keep is not None:
            where = keep[:, None, :, None]
            key = torch.where(where, plain.key, key)
            value = torch.where(where, plain.value, value)
        scaled_value = value if self.scaling.scale_values else plain.value
        return Projected(call.query[:, :, -rows:], key, scaled_value)

    def _rank_one(
        self, arguments: dict[str, Any], plain: Projected, rows: int, keep: Tensor | None
    ) -> Projected:
        if self._columns is None:
            self._columns = self._unit_columns(arguments)
        columns, value_columns = self._columns
        heads = self.traits.heads
        channels = self.scaling.channels
        hidden: Tensor = arguments["hidden_states"]
        chosen = (
            hidden[..., channels[0] : channels[0] + 1]
            if len(channels) == 1
            else hidden[..., list(channels)]
        )
        steps = chosen * (self.scaling.factor - 1)  # [b, n, C]
        kept = steps if keep is None else steps.masked_fill(keep[..., None], 0)
        if rows == steps.shape[1] and keep is None:  # every generated token: one launch for both
            both = self._update(steps, columns, arguments)
            query_step, key_step = both[:, :heads], both[:, heads:]
        else:
            query_step = self._update(steps[:, -rows:], columns[:heads], arguments)
            key_step = self._update(kept, columns[heads:], arguments)
        value = plain.value
        if self.scaling.scale_values:
            value = value + torch.matmul(kept[:, None], value_columns)
        return Projected(plain.query[:, :, -rows:] + query_step, plain.key + key_step, value)

    def _update(self, steps: Tensor, columns: Tensor, arguments: dict[str, Any]) -> Tensor:
        """``sum_c steps[.., c] R(p) columns[.., c, :]`` as `[b, heads, n, d]`.

        `steps` `[b, n, C]` belong to the last `n` tokens of the call.
        """
        update = torch.matmul(steps[:, None], columns)
        if not self.traits.uses_rope:
            return update
        assert self.traits.rotary is not None
        cos, sin = arguments["position_embeddings"]
        cos, sin = pair_tables(cos, sin, self.traits.table_format)
        rows = slice(-steps.shape[1], None)
        return rotate(update, cos[:, None, rows], sin[:, None, rows], self.traits.rotary)

    def _unit_columns(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
        channels = self.scaling.channels
        hidden: Tensor = arguments["hidden_states"]
        probes = hidden.new_zeros(1, 1 + len(channels), hidden.shape[-1])
        for row, channel in enumerate(channels):
            probes[0, 1 + row, channel] = 1
        replaced: dict[str, Any] = {"hidden_states": probes}
        if self.traits.uses_rope:
            cos, sin = arguments["position_embeddings"]
            shape = (1, probes.shape[1], cos.shape[-1])
            replaced["position_embeddings"] = (cos.new_ones(shape), sin.new_zeros(shape))
        call = capture(self.module, arguments, **replaced)
        query, key, value = (t[0, :, 1:] - t[0, :, :1] for t in (call.query, call.key, call.value))
        return torch.cat((query, key)), value
