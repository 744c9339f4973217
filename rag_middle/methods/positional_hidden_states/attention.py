"""Queries, keys and values of hidden states with scaled channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rag_middle.attention import (
    AttentionCall,
    AttentionContext,
    Layer,
    LayerHandler,
    base_attention,
    capture,
)
from rag_middle.attention.seam import MethodHook
from rag_middle.ops.rope import WideTables, rotate_wide

if TYPE_CHECKING:
    from rag_middle.methods.positional_hidden_states import PositionalHiddenStates


#: Length of the unit vectors that columns are read off with. A bias is rounded beside a column: in
#: half precision one of 100 would swallow a weight of 0.02. A power of two rounds nothing itself.
_UNIT = 1024.0

#: Queries of the last rows `[b, h, rows, d]`, keys and values of all tokens `[b, g, n, d]`.
_Projected = tuple[Tensor, Tensor, Tensor]


class ScaledRows(LayerHandler):
    """Scales the cached keys of one layer, and the attention of the rows that are to be scaled.

    Where projections are affine, scaling a channel adds a rank-one term to what the module
    computed already: ``K + (s - 1) h_t (x) W_K[:, t]``, the column rotated to each position. The
    columns come from running the module on unit vectors, so fused, quantised or adapted layers
    need no code of their own. Elsewhere (norms between projection and rotation) the module
    projects the scaled hidden states a second time.
    """

    def __init__(self, layer: Layer, method: PositionalHiddenStates) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._method = method
        self._begin_prompt()
        values = layer.traits.value_projection
        #: Whether the module can make a generated token's queries and keys of scaled hidden states,
        #: and its values of plain ones.
        self._module_scales = (
            values is not None and method.scales_generated and not method.skip_first
        )
        #: What its values are made of, while it does.
        self._hidden: Tensor | None = None
        if values is not None and self._module_scales and not method.scale_values:
            projection = layer.module.get_submodule(values)
            layer.hook(projection.register_forward_pre_hook, self._plain_values)

    def _begin_prompt(self) -> None:
        """Look at the module anew: adapters may have been switched since the last prompt."""
        #: Un-rotated projections of the unit vectors, times ``s - 1``: queries' and keys'
        #: `[h + g, C, d]`, values' `[g, C, dv]`.
        self._columns: tuple[Tensor, Tensor] | None = None
        rotation_known = not self._traits.uses_rope or self._traits.rotary is not None
        self._ranks_one = (
            self._traits.affine_projections
            and rotation_known
            and not _projects_by_row(self._layer.module)
        )

    def before(self, arguments: dict[str, Any]) -> None:
        """Scale a generated token's hidden state: one operation, whatever the module does then."""
        method, request = self._method, self._layer.request
        self._hidden = None
        if self._module_scales and 0 < request.width <= self._layer.start:
            self._hidden = hidden = arguments["hidden_states"]
            ones = request.shared(
                ("scaled channels", method.channels, hidden.dtype, hidden.device),
                lambda: _ones_in(hidden, method.channels),
            )
            # Not times a vector of factors, which half precision would round.
            scaled = torch.addcmul(hidden, hidden, ones, value=method.factor - 1)
            arguments["hidden_states"] = scaled

    def _plain_values(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return None if self._hidden is None else (self._hidden, *args[1:])

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Attention with scaled channels: cache, last prompt rows and generated rows."""
        method, call = self._method, context.call
        if self._hidden is not None:
            self._hidden = None
            context.store()
            return base_attention(call)[0], None
        columns, width = call.query.shape[2], self._layer.request.width
        if not context.start:
            self._begin_prompt()
        if not context.in_prompt and not method.scales_generated:
            return context.proceed()
        rows = columns
        if method.last_tokens is not None:
            rows = min(columns, context.stop - max(context.start, width - method.last_tokens))
        keep = self._unscaled_tokens(context)
        project = self._rank_one if self._ranks_one else self._projected_again
        query, key, value = project(context, rows, keep)
        stored_key, stored_value = context.cache.store(key, value)
        tail = AttentionCall(call.module, query, stored_key, stored_value, call.mask, call.options)
        if rows == columns:
            if call.mask is None:  # nothing hides the empty columns of a static cache
                tail.key, tail.value = (x[:, :, : context.stop] for x in (tail.key, tail.value))
            return base_attention(tail)[0], None
        hidden = self._hidden_padding(context)
        tail_output = context.attention.attend_biased(tail, hidden, context.stop)
        # The other prompt rows attend to what the model itself would have cached.
        call.key = _in_place_of(call.key, stored_key)
        call.value = _in_place_of(call.value, stored_value)
        output, _ = context.proceed()
        output[:, columns - rows :] = tail_output
        return output, None

    def _hidden_padding(self, context: AttentionContext) -> Tensor | None:
        """`-inf` on the padding of every row, `[b, 1, 1, columns]`; ``None`` without padding."""
        request, query, stop = self._layer.request, context.call.query, context.stop
        if not any(group.padding for group in request.groups):
            return None

        def make() -> Tensor:
            columns = torch.arange(stop, device=query.device)
            hidden = columns < request.paddings(query.device)[:, None]
            return query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]

        return request.shared(("hidden padding", stop, query.device, query.dtype), make)

    def _unscaled_tokens(self, context: AttentionContext) -> Tensor | None:
        """Tokens of this call that keep their keys, boolean `[b, n]`."""
        method, request = self._method, self._layer.request
        if not method.skip_first and method.scales_generated:
            return None
        device = context.call.query.device
        columns = torch.arange(context.start, context.stop, device=device)
        first = request.paddings(device)[:, None] + method.skip_first
        keep = columns[None, :] < first
        if not method.scales_generated:
            keep = keep | (columns[None, :] >= request.width)
        return keep

    def _projected_again(
        self, context: AttentionContext, rows: int, keep: Tensor | None
    ) -> _Projected:
        """What the module makes of scaled hidden states; its own keys and values where kept.

        Args:
            context: of the call, with the module's own queries, keys and values.
            rows: queries wanted, counted from the end.
            keep: tokens whose keys and values stay as they are, boolean `[b, n]`, or ``None``.
        """
        method, call = self._method, context.call
        hidden = context.arguments["hidden_states"].clone()
        hidden[..., list(method.channels)] *= method.factor
        scaled = capture(self._layer.module, context.arguments, hidden_states=hidden)
        key, value = scaled.key, scaled.value if method.scale_values else call.value
        if keep is not None:
            where = keep[:, None, :, None]
            key, value = torch.where(where, call.key, key), torch.where(where, call.value, value)
        return scaled.query[:, :, -rows:], key, value

    def _rank_one(self, context: AttentionContext, rows: int, keep: Tensor | None) -> _Projected:
        """The same by a term for each channel; arguments are those of `_projected_again`."""
        call, arguments, rotary = context.call, context.arguments, self._layer.rotary
        query, key, value = call.query[:, :, -rows:], call.key, call.value
        if self._columns is None:
            self._columns = self._unit_columns(arguments)
        columns, value_columns = self._columns
        tables, style = None, self._traits.rotary
        if rotary is not None and style is not None:  # of the rotation in force, `[b or 1, n, 2r]`
            tables = rotary.wide_of(arguments["position_embeddings"], style)
            tables = WideTables(*(table.to(key.device) for table in tables))
        heads, hidden = self._traits.heads, arguments["hidden_states"]
        for index, channel in enumerate(self._method.channels):
            step = hidden[:, None, :, channel : channel + 1]  # [b, 1, n, 1]
            kept = step if keep is None else step.masked_fill(keep[:, None, :, None], 0)
            column = columns[:, index, None]  # [h + g, 1, d]
            of_query = self._placed(column[:heads], tables, query.shape[2])
            of_key = self._placed(column[heads:], tables, key.shape[2])
            query = torch.addcmul(query, step[:, :, -query.shape[2] :], of_query)
            key = torch.addcmul(key, kept, of_key)
            if self._method.scale_values:
                value = torch.addcmul(value, kept, value_columns[:, index, None])
        return query, key, value

    def _placed(self, column: Tensor, tables: WideTables | None, rows: int) -> Tensor:
        """``R(p) column`` at each of the last `rows` tokens: `[b or 1, heads, rows or 1, d]`."""
        if tables is None or self._traits.rotary is None:
            return column[None]
        at = WideTables(*(table[:, None, -rows:] for table in tables))
        return rotate_wide(column[None], at, self._traits.rotary)

    def _unit_columns(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
        channels = self._method.channels
        hidden: Tensor = arguments["hidden_states"]
        probes = hidden.new_zeros(1, 1 + len(channels), hidden.shape[-1])
        for row, channel in enumerate(channels):
            probes[0, 1 + row, channel] = _UNIT
        replaced: dict[str, Any] = {"hidden_states": probes}
        if self._traits.uses_rope:
            cos, sin = arguments["position_embeddings"]
            shape = (1, probes.shape[1], cos.shape[-1])
            replaced["position_embeddings"] = (cos.new_ones(shape), sin.new_zeros(shape))
        if isinstance(place := arguments.get("position_ids"), Tensor):
            # Which ones does not matter: where they scale queries, nothing is affine.
            shape = (*place.shape[:-2], *probes.shape[:2])
            replaced["position_ids"] = place[..., :1, :1].expand(shape)  # a view: no launch
        call = capture(self._layer.module, arguments, **replaced)
        query, key, value = (
            (t[0, :, 1:] - t[0, :, :1]) * ((self._method.factor - 1) / _UNIT)
            for t in (call.query, call.key, call.value)
        )
        return torch.cat((query, key)), value


def _in_place_of(plain: Tensor, stored: Tensor) -> Tensor:
    """`plain` in the shape of what a cache stored: static caches are longer than the prompt."""
    if stored.shape[2] == plain.shape[2]:
        return plain
    whole = stored.clone()
    whole[:, :, : plain.shape[2]] = plain
    return whole


def _ones_in(like: Tensor, channels: tuple[int, ...]) -> Tensor:
    """Ones in these channels, zeros in the others, `[hidden]`."""
    ones = like.new_zeros(like.shape[-1])
    for channel in channels:  # a list of them would be sent to the device
        ones[channel].fill_(1)
    return ones


def _projects_by_row(module: nn.Module) -> bool:
    """Whether hooks of others tell projections what to do in each row or token, by keyword.

    PEFT does that for batches of several adapters, and for those that act after certain tokens.
    Other hooks may only look: nothing is projected again because of them.
    """
    return any(
        not isinstance(part._forward_pre_hooks[number], MethodHook)
        for part in module.modules()
        if part is not module
        for number in part._forward_pre_hooks_with_kwargs
    )
