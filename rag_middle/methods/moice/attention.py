"""One layer's attention with several rotary bases, the outputs mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    Layer,
    LayerHandler,
    base_attention,
)
from rag_middle.methods.moice.kernels import ExpertGate, expert_scores, expert_weights, mixed_values
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.rope import WideTables, rotate_wide
from rag_middle.ops.rotate_heads import HEADS_CHECK, rotate_heads
from rag_middle.ops.scores import ScoreRule

if TYPE_CHECKING:
    from rag_middle.methods.moice import MoICE

#: Queries of generated tokens are multiplied by it, as the product of two outliers may exceed what
#: float16 holds. A power of two rounds nothing but numbers next to zero.
_QUERY_SCALE = 2.0**-7


class ExpertAttention(LayerHandler):
    """Mixes the attentions of several bases in one layer; gradients pass.

    The cache holds un-rotated keys: one cache serves all bases. A prompt is read by the model's own
    attention once per base. A generated token takes the products of its query and the keys once,
    and rotates these by each base's angles.
    """

    def __init__(self, layer: Layer, method: MoICE) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._method = method
        self._factors = method.expert_factors
        self._router: ExpertGate | None = None

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Output `[b, n, h, dv]`: queries and keys come un-rotated."""
        call, stop = context.call, context.stop
        context.store()
        # A static cache is longer than what it holds; one with a window drops the oldest columns.
        oldest = max(0, stop - call.key.shape[2])
        if call.query.shape[2] == 1 and not self._traits.norms_after_rope:
            return self._of_token(call, context.start, stop - oldest), None
        return self._of_prompt(call, oldest, slice(context.start - oldest, stop - oldest)), None

    def _of_prompt(self, call: AttentionCall, oldest: int, rows: slice) -> Tensor:
        """One attention after the other, of the queries in these rows of the cache."""
        query = call.query
        output: Tensor | None = None
        weights: Tensor | None = None
        for expert, factor in enumerate(self._factors):
            tables = self._tables(factor, oldest, call.key.shape[2], query.device)
            rotated = self._layer.normalised(*self._rotated(call, tables, rows))
            if weights is None:
                weights = self._weights(rotated[0])
            part = AttentionCall(call.module, *rotated, call.value, call.mask, call.options)
            attended, _ = base_attention(part)
            share = weights[..., expert].transpose(1, 2)[..., None].to(attended.dtype)
            output = attended * share if output is None else output.addcmul(attended, share)
        assert output is not None
        return output

    def _rotated(
        self, call: AttentionCall, tables: WideTables, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Queries `[b, h, m, d]`, which stand in these rows of the tables, and keys."""
        query, key, style = call.query, call.key, self._traits.rotary
        request = self._layer.request
        assert style is not None
        # The kernel takes as many queries as keys: a prompt read from its beginning.
        if query.shape[2] == key.shape[2] and uses_triton(
            request.kernels, query, key, call.value, HEADS_CHECK, style=style
        ):
            request.kernels_used = "triton"
            heads = query.shape[1] + key.shape[1]
            first_table = request.shared(
                ("first table", heads, query.device),
                lambda: torch.zeros(1, 1, heads, dtype=torch.long, device=query.device),
            )
            of_rows = WideTables(*(table.transpose(0, 1) for table in tables))
            rotated = rotate_heads(query, key, of_rows, first_table, style)
            return rotated[0][..., 0, :], rotated[1][..., 0, :]
        of_queries = WideTables(*(table[:, :, rows] for table in tables))
        return rotate_wide(query, of_queries, style), rotate_wide(key, tables, style)

    def _of_token(self, call: AttentionCall, token: int, columns: int) -> Tensor:
        """All attentions of one token to the first `columns` keys, `[b, 1, h, dv]`."""
        traits, rotary, factors = self._traits, self._layer.rotary, self._factors
        query, keys, values = call.query, call.key[:, :, :columns], call.value[:, :, :columns]
        assert traits.rotary is not None
        assert rotary is not None
        cos, sin = (
            table.to(query.device, query.dtype)
            for table in rotary.rebased_distances(factors, columns, traits.rotary)
        )
        rule = ScoreRule(scale=traits.score_scale, softcap=traits.softcap)
        scores = expert_scores(query[:, :, 0] * _QUERY_SCALE, keys, cos, sin, traits.rotary)
        scores = _masked(rule.cap_(scores * (rule.scale / _QUERY_SCALE)), call.mask)
        if self._method.trained is not None:
            own = self._tables(factors[0], token, 1, query.device)
            query = rotate_wide(query, own, traits.rotary)
        shares = self._weights(query)[:, :, 0]
        return mixed_values(scores, shares, values, call.options.get("s_aux"))[:, None]

    def _weights(self, query: Tensor) -> Tensor:
        """Of every expert, `[b, h, n, E]`."""
        experts = len(self._factors)
        trained = self._method.trained
        if trained is None:
            return torch.full(
                (*query.shape[:3], experts), 1 / experts, device=query.device, dtype=torch.float32
            )
        if self._router is None:  # sent to the layer's device once per request
            router = trained.gates[self._traits.layer]
            self._router = ExpertGate(*(w.to(query.device, torch.float32) for w in router))
        return expert_weights(query, self._router, self._method.top_k or experts)

    def _tables(
        self,
        factor: float,
        first: int,
        columns: int,
        device: torch.device,
    ) -> WideTables:
        """Tables of columns from `first` on, `[b, 1, columns, 2r]`, for one base."""
        style, rotary, request = self._traits.rotary, self._layer.rotary, self._layer.request
        assert style is not None
        assert rotary is not None

        def positions() -> Tensor:
            tokens = torch.arange(first, first + columns, device=rotary.x.device)
            paddings = request.paddings(rotary.x.device)
            return (tokens - paddings[:, None]).clamp(min=0)

        tables = rotary.rebased_wide(factor, (first, columns), positions, style)
        return WideTables(*(table[:, None].to(device) for table in tables))


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores `[b, h, E, n]` under the mask of a query, `[b or 1, 1, 1, k]` or (flash) `[b, k]`."""
    if mask is None:
        return scores
    if mask.ndim == 2:
        return scores.masked_fill(mask[:, None, None, -scores.shape[-1] :] == 0, -torch.inf)
    mask = mask[..., : scores.shape[-1]]
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
