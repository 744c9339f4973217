"""Rotation by head-wise rescaled positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rag_middle.attention import (
    AttentionContext,
    Layer,
    LayerHandler,
    LayerStack,
    in_rows,
)
from rag_middle.ops.kernels import uses_triton
from rag_middle.ops.rope import WideTables, rotate_wide
from rag_middle.ops.rotate_heads import HEADS_CHECK, rotate_heads
from rag_middle.ops.scores import as_factor, products

if TYPE_CHECKING:
    from rag_middle.methods.ms_poe import MsPoE

#: Query heads, of all rows, up to which every head of a token is rotated by every table.
_MOST_TABLES = 256


class HeadRotation(LayerHandler):
    """Rotates one layer's queries and keys, each head on its own scale.

    The scales are chosen at the prompt's forward pass from the last token's attention, and kept
    for the tokens generated after it.
    """

    def __init__(self, layer: Layer, method: MsPoE) -> None:
        self._layer = layer
        self._traits = layer.traits
        self._method = method
        self._ratios = method.ratios(layer.traits)
        #: Index of the ratio of query heads and then key heads, `[b, h + g]`.
        self._choice: Tensor | None = None
        #: The same, with that of other layers.
        self._stack = LayerStack()
        self._model_rotates = False

    def tables_by_head(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Let the model rotate a generated token, whose heads' ratios are known."""
        rotary, heads = self._layer.rotary, self._traits.heads
        b, n, _ = arguments["hidden_states"].shape
        alone = heads == self._traits.kv_heads
        # Else each head is rotated by every table: nothing for a few rows, traffic for many.
        few = alone or b * heads <= _MOST_TABLES
        self._model_rotates = self._layer.start > 0 and n == 1 and few
        if not self._model_rotates:
            return None
        assert rotary is not None

        def pick(choices: Tensor) -> tuple[Tensor, ...]:
            """Of every layer, `[layers, 1, b, h, 1, w]` or `[layers, h, b, 1, 1, w]`."""
            # In one tensor: what is picked in one operation.
            tables = torch.cat(rotary.at_scales(self._ratios), dim=-1)
            of_rows = in_rows(choices.transpose(0, 1), b).transpose(0, 1)
            picked = _picked(tables, of_rows[..., :heads])
            by_head = picked[:, None] if alone else picked.transpose(1, 2)[..., None, :]
            return by_head.chunk(2, dim=-1)

        cos, sin = rotary.of_layer(self._traits.layer, self._stack, pick)
        return cos, sin

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Replace the call's un-rotated query and key by rotated ones."""
        if self._model_rotates:
            return context.proceed()
        call, request = context.call, self._layer.request
        if context.start == 0:
            self._choice = self._choose(context)
            name = ("ratios", self._ratios)
            self._stack = self._layer.layer_stack(name, call.query.device)
            self._stack.put(self._traits.layer, self._choice)
        rotary, style, choice = self._layer.rotary, self._traits.rotary, self._choice
        assert rotary is not None
        assert style is not None
        assert choice is not None
        choice = in_rows(choice, len(call.query))  # beams may begin after the prompt
        tables = rotary.wide(self._ratios, style)
        if uses_triton(request.kernels, call.query, call.key, call.value, HEADS_CHECK, style=style):
            request.kernels_used = "triton"
            copies = rotate_heads(call.query, call.key, tables, choice[:, None], style)
            rotated = copies[0][..., 0, :], copies[1][..., 0, :]
        else:
            heads, kv_heads = self._traits.heads, self._traits.kv_heads
            of_keys = WideTables(*(_picked(table, choice[:, heads:]) for table in tables))
            of_queries = of_keys
            if heads != kv_heads:
                of_queries = WideTables(*(_picked(table, choice[:, :heads]) for table in tables))
            rotated = (
                rotate_wide(call.query, of_queries, style),
                rotate_wide(call.key, of_keys, style),
            )
        call.query, call.key = self._layer.normalised(*rotated)
        return context.proceed()

    def _choose(self, context: AttentionContext) -> Tensor:
        call, request, method = context.call, self._layer.request, self._method
        heads, groups = self._traits.heads, self._traits.kv_heads
        padded = any(group.padding for group in request.groups)
        awareness = position_awareness(
            call.query[:, :, request.width - 1],
            call.key[:, :, : request.width],
            scale=self._traits.score_scale,
            threshold=None if method.head_order == "entropy" else method.threshold,
            strict=method.reference_code,
            padding=request.paddings(call.query.device) if padded else None,
        )
        assign: str = "argsort" if method.reference_code else method.assign
        if method.head_order in ("sequential", "random"):
            assign = "sequential"
        if method.reference_code:
            of_heads = assigned_ratios(awareness, heads, assign)
            return torch.cat((of_heads, of_heads[:, :: heads // groups]), dim=1)
        awareness = awareness.unflatten(1, (groups, -1)).mean(-1)
        of_groups = assigned_ratios(awareness, groups, assign)
        return torch.cat((of_groups.repeat_interleave(heads // groups, dim=1), of_groups), dim=1)


def _picked(table: Tensor, choice: Tensor) -> Tensor:
    """Each row's and head's table, `[..., b, heads, n, w]`.

    Args:
        table: `[ratios, b or 1, n, w]`, possibly on another device than the layer.
        choice: index of each head's ratio, `[..., b, heads]`.
    """
    table = table.to(choice.device)
    if table.shape[1] == 1:
        return table[:, 0][choice]
    return table[choice, torch.arange(choice.shape[-2], device=choice.device)[:, None]]


def position_awareness(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    threshold: float | None,
    strict: bool = False,
    padding: Tensor | None = None,
) -> Tensor:
    """Share of the prompt that the last token attends to far above average.

    ``S = mean_i[ A_i >= threshold * mean(A) ]`` with ``A`` the attention of the last prompt token.

    Args:
        query: the last prompt token's query `[b, h, d]`, without position embedding.
        key: keys `[b, g, n, d]` of the prompt, without position embedding.
        scale: factor on query-key products.
        threshold: multiple of the mean from which on a token counts (3 in the paper); ``None`` for
            the entropy of ``A``, in nats, instead of that share.
        strict: a token at exactly that multiple does not count.
        padding: columns of left padding per row `[b]`; not counted.

    Returns:
        `[b, h]` in float32. Linear in `n`: only one row of the attention matrix is computed.
    """
    b, h, d = query.shape
    g, n = key.shape[1], key.shape[2]
    # float32: near-ties between heads decide their order, bf16 would flip them.
    grouped = as_factor(query.reshape(b * g, h // g, d))
    scores = products(grouped, as_factor(key.reshape(b * g, n, d))).view(b, h, n) * scale
    tokens: Tensor | None = None
    if padding is not None:
        hidden = torch.arange(n, device=key.device)[None, :] < padding[:, None]
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
        tokens = (n - padding)[:, None].float()
    attention = scores.softmax(-1)
    if threshold is None:
        entropy: Tensor = torch.special.entr(attention).sum(-1)
        return entropy
    reaches = torch.gt if strict else torch.ge
    if tokens is None:
        return reaches(attention, threshold / n).float().mean(-1)
    return reaches(attention, threshold / tokens[..., None]).float().sum(-1) / tokens


def assigned_ratios(awareness: Tensor, ratios: int, assign: str) -> Tensor:
    """Index of each head's ratio.

    Args:
        awareness: `[b, heads]`.
        ratios: how many there are, as many as heads; the first is for the most position-aware one.
        assign: ``"rank"``: head ``i`` gets the ratio of its rank. ``"argsort"``: head ``i`` gets
            ratio number ``argsort(awareness)[i]``. ``"sequential"``: head ``i`` gets ratio ``i``.

    Returns:
        Indices of ratios, `[b, heads]`. Ties keep the order of the heads.
    """
    if assign == "sequential":
        return torch.arange(ratios, device=awareness.device).expand(awareness.shape[0], ratios)
    order = awareness.argsort(dim=-1, descending=True, stable=True)
    return order if assign == "argsort" else order.argsort(dim=-1, stable=True)
