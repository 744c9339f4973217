"""Queries, keys and values of hidden states with scaled channels (positional hidden states)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.capture import capture
from rag_middle.attention.plan import ChannelScaling
from rag_middle.attention.rotary import pair_tables
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.rope import rotate

__all__ = ["ChannelScaler", "scaled_hidden"]


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
    _columns: tuple[Tensor, Tensor, Tensor] | None = None

    def apply(
        self,
        arguments: dict[str, Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled counterparts of the module's own tensors.

        Args:
            arguments: the module's arguments by name, ``hidden_states`` `[b, n, hidden]` and the
                position embeddings in force among them.
            query: `[b, h, n, d]` as the module computed it.
            key: `[b, g, n, d]`.
            value: `[b, g, n, dv]`.
            keep: tokens whose keys and values stay as they are, boolean `[b, n]`, or ``None``.
        """
        if self.traits.affine_projections and (
            not self.traits.uses_rope or self.traits.rotary is not None
        ):
            return self._rank_one(arguments, query, key, value, keep)
        call = capture(
            self.module,
            arguments,
            hidden_states=scaled_hidden(arguments["hidden_states"], self.scaling),
        )
        scaled_key, scaled_value = call.key, call.value
        if keep is not None:
            where = keep[:, None, :, None]
            scaled_key = torch.where(where, key, scaled_key)
            scaled_value = torch.where(where, value, scaled_value)
        return call.query, scaled_key, scaled_value if self.scaling.scale_values else value

    def _rank_one(
        self,
        arguments: dict[str, Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._columns is None:
            self._columns = self._unit_columns(arguments)
        query_columns, key_columns, value_columns = self._columns
        hidden: Tensor = arguments["hidden_states"]
        steps = hidden[..., list(self.scaling.channels)] * (self.scaling.factor - 1)  # [b, n, C]
        kept = steps if keep is None else steps.masked_fill(keep[..., None], 0)
        scaled_query = query + self._update(steps, query_columns, arguments)
        scaled_key = key + self._update(kept, key_columns, arguments)
        if not self.scaling.scale_values:
            return scaled_query, scaled_key, value
        return scaled_query, scaled_key, value + torch.einsum("bnc,hcd->bhnd", kept, value_columns)

    def _update(self, steps: Tensor, columns: Tensor, arguments: dict[str, Any]) -> Tensor:
        """``sum_c steps[.., c] R(p) columns[.., c, :]`` as `[b, heads, n, d]`."""
        update = torch.einsum("bnc,hcd->bhnd", steps, columns)
        if not self.traits.uses_rope:
            return update
        cos, sin = arguments["position_embeddings"]
        cos, sin = pair_tables(cos, sin, self.traits.table_format)
        assert self.traits.rotary is not None
        return rotate(update, cos[:, None], sin[:, None], self.traits.rotary)

    def _unit_columns(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Un-rotated projections of the unit vectors, `[heads, C, d]` for q, k and v."""
        channels = self.scaling.channels
        hidden: Tensor = arguments["hidden_states"]
        probes = hidden.new_zeros(1, 1 + len(channels), hidden.shape[-1])
        for row, channel in enumerate(channels):
            probes[0, 1 + row, channel] = 1
        replaced: dict[str, Any] = {"hidden_states": probes}
        if self.traits.uses_rope:
            cos, sin = (
                t[:1, :1].expand(1, probes.shape[1], -1) for t in arguments["position_embeddings"]
            )
            replaced["position_embeddings"] = (torch.ones_like(cos), torch.zeros_like(sin))
        call = capture(self.module, arguments, **replaced)
        query, key, value = (t[0, :, 1:] - t[0, :, :1] for t in (call.query, call.key, call.value))
        return query, key, value
