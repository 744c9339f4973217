"""One layer's attention with several rotary bases, the outputs mixed (MoICE)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rag_middle.attention.plan import RotaryExperts
from rag_middle.attention.request import Request
from rag_middle.attention.rotary import RotaryCall
from rag_middle.attention.seam import AttentionCall, CacheTap, base_attention
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.experts import expert_weights
from rag_middle.ops.rope import WideTables, rotate_wide

__all__ = ["ExpertAttention"]


class ExpertAttention:
    """Runs the model's own attention once per base; gradients pass.

    The cache holds un-rotated keys, which every base rotates anew at every step: one cache serves
    all of them.
    """

    def __init__(self, traits: LayerTraits, plan: RotaryExperts) -> None:
        self._traits = traits
        self._plan = plan

    def attend(
        self,
        call: AttentionCall,
        tap: CacheTap,
        rotary: RotaryCall,
        normalised: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        request: Request,
        start: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]` of the call's tokens, columns `start` to `start + n`.

        Args:
            call: queries and keys un-rotated.
            tap: of the cache.
            rotary: of the forward pass.
            normalised: what the model does to queries and keys after their rotation.
            request: of the call.
            start: columns before the call.
        """
        style, plan = self._traits.rotary, self._plan
        assert style is not None
        query = call.query
        keys, values = tap.store(call.key, call.value)
        stop = start + query.shape[2]
        # A static cache is longer than what it holds; one with a window drops the oldest columns.
        oldest = max(0, stop - keys.shape[2])
        rows = slice(start - oldest, stop - oldest)
        output: Tensor | None = None
        weights: Tensor | None = None
        for expert, factor in enumerate(plan.base_factors):
            tables = self._tables(factor, rotary, request, oldest, keys.shape[2], query.device)
            of_queries = WideTables(*(table[:, :, rows] for table in tables))
            rotated = normalised(
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
        rotary: RotaryCall,
        request: Request,
        oldest: int,
        columns: int,
        device: torch.device,
    ) -> WideTables:
        """Tables of every column in the cache, `[b, 1, columns, 2r]`, for one base."""
        style = self._traits.rotary
        assert style is not None

        def positions() -> Tensor:
            tokens = torch.arange(oldest, oldest + columns, device=rotary.x.device)
            paddings = request.paddings(rotary.x.device)
            return (tokens - paddings[:, None]).clamp(min=0)

        tables = rotary.rebased_wide(
            factor, (oldest, columns), positions, self._traits.table_format, style
        )
        return WideTables(*(table[:, None].to(device) for table in tables))
