"""Self-Extend's attention in a transformers layer, around `rag_middle.ops.self_extend`."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from rag_middle.attention.initial_token import reweighted, token_factors
from rag_middle.attention.plan import GroupedPositions, InitialTokenScaling, OnlineAreas
from rag_middle.attention.request import Request, join_rows
from rag_middle.attention.rotary import RotaryCall
from rag_middle.attention.seam import AttentionCall, CacheTap
from rag_middle.attention.traits import LayerTraits
from rag_middle.ops.importance import ScoreRule
from rag_middle.ops.rope import WideTables, rotate_wide
from rag_middle.ops.self_extend import Attended, TwoFold, attend

__all__ = ["GroupedAttention"]


class GroupedAttention:
    """Attention of one layer with grouped positions beyond a window, during one request.

    The cache holds every key twice, side by side along the head dimension: rotated at its own
    position and at its grouped one. So no key is ever rotated again, and whatever moves rows of a
    cache (beams) moves both.
    """

    def __init__(self, traits: LayerTraits, positions: GroupedPositions) -> None:
        self._traits = traits
        self._positions = positions

    def attend(
        self,
        call: AttentionCall,
        tap: CacheTap,
        rotary: RotaryCall,
        normalised: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        weights: InitialTokenScaling | OnlineAreas | None,
        request: Request,
        start: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]` of the call's tokens, columns `start` to `start + n`.

        Args:
            call: queries and keys un-rotated.
            tap: of the cache.
            rotary: of the forward pass.
            normalised: what the model does to queries and keys after their rotation.
            weights: how the initial token's weights change (SIW).
            request: of the call.
            start: columns before the call.
        """
        near_q, near_k, far_q, far_k = self._rotated(call, rotary, request, start)
        near_q, near_k = normalised(near_q, near_k)
        far_q, far_k = normalised(far_q, far_k)
        stored, values = tap.store(torch.cat((near_k, far_k), dim=-1), call.value)
        stop = start + call.query.shape[2]
        # A static cache is longer than what it holds; one with a window drops the oldest columns.
        dropped = max(0, stop - stored.shape[2])
        keys = TwoFold(*stored[:, :, : stop - dropped].chunk(2, dim=-1))
        values = values[:, :, : stop - dropped]
        reweights = weights is not None and start < request.width
        results = []
        for group in request.groups:
            # Of queries, too, padding goes first.
            rows = max(0, group.padding - start)
            columns = max(0, group.padding - dropped)
            results.append(
                attend(
                    TwoFold(*(group.take(x)[:, :, rows:] for x in (near_q, far_q))),
                    TwoFold(*(group.take(x)[:, :, columns:] for x in keys)),
                    group.take(values)[:, :, columns:],
                    self._positions.window,
                    self._rule(stop),
                    sinks=call.options.get("s_aux"),
                    watch=request.width - 1 - group.padding if reweights else None,
                )
            )
        padded = start == 0
        output = join_rows(request.groups, [each.out for each in results], padded=padded)
        output = output.transpose(1, 2)
        if weights is None or not reweights:
            return output, None
        return self._reweighted(output, results, call, weights, request), None

    def _rule(self, tokens: int) -> ScoreRule:
        window = self._traits.sliding_window
        return ScoreRule(
            scale=self._traits.score_scale,
            softcap=self._traits.softcap,
            window=window if window is not None and window < tokens else None,
        )

    def _rotated(
        self, call: AttentionCall, rotary: RotaryCall, request: Request, start: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query and key at exact positions, then at grouped ones."""
        style, plan = self._traits.rotary, self._positions
        assert style is not None
        n, device = call.query.shape[2], rotary.x.device

        def tokens() -> Tensor:
            columns = torch.arange(start, start + n, device=device)
            return (columns - request.paddings(device)[:, None]).clamp(min=0)  # [b, n]

        def positions() -> Tensor:
            exact = tokens()
            grouped = exact.div(plan.group, rounding_mode="floor").float()
            return torch.cat((exact.float(), grouped, grouped + plan.query_shift))

        tables = rotary.wide_at(plan, 3, positions, self._traits.table_format, style)
        near, far_k, far_q = (
            WideTables(*(table[i][:, None].to(call.query.device) for table in tables))
            for i in range(3)
        )
        query = call.query
        if plan.log_base is not None:
            growth = (tokens() + 1).to(query.device).float().log() / log(plan.log_base)
            query = query * growth.clamp(min=1).to(query.dtype)[:, None, :, None]
        return (
            rotate_wide(query, near, style),
            rotate_wide(call.key, near, style),
            rotate_wide(query, far_q, style),
            rotate_wide(call.key, far_k, style),
        )

    def _reweighted(
        self,
        output: Tensor,
        results: list[Attended],
        call: AttentionCall,
        weights: InitialTokenScaling | OnlineAreas,
        request: Request,
    ) -> Tensor:
        first_weights = [each.first_weight for each in results if each.first_weight is not None]
        weight = join_rows(request.groups, [each[..., None] for each in first_weights])[..., 0]

        def last_attention() -> Tensor:
            rows = [each.watched for each in results if each.watched is not None]
            means = [each.mean(1)[:, None, :, None] for each in rows]
            return join_rows(request.groups, means)[:, 0, : request.width, 0]

        factors = token_factors(weights, last_attention, request, call.query)
        first = request.paddings(call.query.device)
        return reweighted(output, weight, call.value, factors, first)
