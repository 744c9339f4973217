"""One layer's attention with several rotary bases, the outputs mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    Layer,
    LayerChange,
    LayerHandler,
    base_attention,
)
from rag_middle.methods.moice.kernels import ExpertGate, expert_weights
from rag_middle.ops.rope import WideTables, rotate_wide

__all__ = ["RotaryExperts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RotaryExperts(LayerChange):
    """Every head attends with several rotary bases, and their outputs are mixed.

    Attributes:
        base_factors: what the model's own base is multiplied by, one per expert.
        routers: by layer; ``None`` mixes all experts in equal parts.
        top_k: experts that a router keeps for a query.
    """

    # Hidden states would have to be scaled, and weights changed, in each of several attentions.
    claims = frozenset({"positions", "hidden", "weights"})
    defers_rotation = True

    base_factors: tuple[float, ...]
    routers: Mapping[int, ExpertGate] | None
    top_k: int

    def start(self, layer: Layer) -> LayerHandler:
        return _ExpertAttention(layer, self)


class _ExpertAttention(LayerHandler):
    """Runs the model's own attention once per base; gradients pass.

    The cache holds un-rotated keys, which every base rotates anew at every step: one cache serves
    all of them.
    """

    def __init__(self, layer: Layer, plan: RotaryExperts) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._plan = plan

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]`: queries and keys come un-rotated."""
        call = context.call
        style, plan = self._traits.rotary, self._plan
        assert style is not None
        query = call.query
        context.store()
        keys, values, stop = call.key, call.value, context.stop
        # A static cache is longer than what it holds; one with a window drops the oldest columns.
        oldest = max(0, stop - keys.shape[2])
        rows = slice(context.start - oldest, stop - oldest)
        output: Tensor | None = None
        weights: Tensor | None = None
        for expert, factor in enumerate(plan.base_factors):
            tables = self._tables(factor, oldest, keys.shape[2], query.device)
            of_queries = WideTables(*(table[:, :, rows] for table in tables))
            rotated = self._layer.normalised(
                rotate_wide(query, of_queries, style), rotate_wide(keys, tables, style)
            )
            if weights is None:
                weights = self._weights(rotated[0])
            part = AttentionCall(call.module, *rotated, values, call.mask, call.options)
            attended, _ = base_attention(part)
            share = weights[..., expert].transpose(1, 2)[..., None].to(attended.dtype)
            output = attended * share if output is None else output + attended * share
        assert output is not None
        return output, None

    def _weights(self, query: Tensor) -> Tensor:
        """Of every expert, `[b, h, n, E]`."""
        experts = len(self._plan.base_factors)
        if self._plan.routers is None:
            return torch.full((*query.shape[:3], experts), 1 / experts, device=query.device)
        return expert_weights(query, self._plan.routers[self._traits.layer], self._plan.top_k)

    def _tables(
        self,
        factor: float,
        oldest: int,
        columns: int,
        device: torch.device,
    ) -> WideTables:
        """Tables of every column in the cache, `[b, 1, columns, 2r]`, for one base."""
        style, rotary, request = self._traits.rotary, self._layer.rotary, self._layer.request
        assert style is not None
        assert rotary is not None

        def positions() -> Tensor:
            tokens = torch.arange(oldest, oldest + columns, device=rotary.x.device)
            paddings = request.paddings(rotary.x.device)
            return (tokens - paddings[:, None]).clamp(min=0)

        tables = rotary.rebased_wide(
            factor, (oldest, columns), positions, self._traits.table_format, style
        )
        return WideTables(*(table[:, None].to(device) for table in tables))
