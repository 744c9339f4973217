"""Documents that do not attend to each other, for BLOOM, which has no attention interface.

BLOOM computes scores by itself and adds a bias by position (ALiBi) and a mask to them. What a query
sees, where keys stand and how much documents weigh are all sums to scores, so one bias of our own
replaces both.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from rag_middle.attention import Layer, LayerChange, LayerHandler
from rag_middle.layout import PromptLayout
from rag_middle.methods.parallel_context.attention import DocumentBlocks
from rag_middle.methods.parallel_context.kernels import document_shifts, token_positions


@dataclass(frozen=True, slots=True)
class BloomDocumentBlocks(LayerChange):
    """`DocumentBlocks` of a BLOOM model."""

    claims = DocumentBlocks.claims
    answers_attention = False

    blocks: DocumentBlocks

    def start(self, layer: Layer) -> LayerHandler:
        return _BloomBlocks(layer, self.blocks)


class _BloomBlocks(LayerHandler):
    """Keeps documents apart in one BLOOM attention module during one request."""

    def __init__(self, layer: Layer, plan: DocumentBlocks) -> None:
        self._layer = layer
        self._plan = plan
        self._request = layer.request
        module = layer.module
        heads: int = module.num_heads  # type: ignore[assignment]
        # The model's own function, asked for the bias at position 1.
        tensor = sys.modules[type(module).__module__].build_alibi_tensor
        self._slopes: Tensor = tensor(torch.ones(1, 2, device="cpu"), heads, torch.float32)[:, 0, 1]

    def before(self, arguments: dict[str, Any]) -> None:
        """Another bias, and no mask beside it."""
        hidden: Tensor = arguments["hidden_states"]
        rows, columns = hidden.shape[:2]
        self._layer.begin_call(arguments)
        start = self._layer.start
        self._request.see(rows, columns, start)
        self._layer.end_call(columns)
        keys: int = arguments["alibi"].shape[-1]  # a static cache is longer than what it holds
        arguments["alibi"] = self._bias(start, columns, keys, hidden).flatten(0, 1)
        arguments["attention_mask"] = None

    def _bias(self, start: int, columns: int, keys: int, hidden: Tensor) -> Tensor:
        """`[b, h, columns, keys]`, made by the first layer of a forward pass for all of them."""
        made: dict[Any, Tensor] = self._request.shared(("bloom", self._plan), dict)
        name = (start, columns, keys, hidden.dtype, hidden.device)
        if name not in made:
            made.clear()  # those of earlier passes are not needed again
            slopes = self._slopes[:, None, None]
            # Half of the lowest number of both: a score on top of it must not make it infinite.
            hide = max(torch.finfo(x.dtype).min for x in (hidden, slopes)) / 2
            by_group: dict[int, Tensor] = {}
            for group in self._request.groups:
                tokens = torch.arange(keys, device="cpu") - group.padding
                added, hidden_keys = _summands(self._plan, group.layout, tokens, start, columns)
                bias = (slopes * added[0] + added[1]).masked_fill(hidden_keys, hide)
                by_group |= dict.fromkeys(group.rows, bias.to(hidden))
            made[name] = torch.stack([by_group[row] for row in sorted(by_group)])
        return made[name]


def _summands(
    plan: DocumentBlocks, layout: PromptLayout, tokens: Tensor, start: int, columns: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """What is added to scores of columns `start` to `start + columns` on all keys.

    Args:
        plan: where documents stand, and what they weigh.
        layout: of the prompt.
        tokens: index of every key's token, `[N]`; below 0 for padding.

    Returns:
        Positions of the keys as each query sees them and logarithms of their weights, both
        `[columns, N]`, and which keys it does not see.
    """
    first, last = layout.prefix_tokens, layout.suffix_start
    query = tokens[start : start + columns, None]
    positions = token_positions(layout, plan.placement, tokens.clamp(min=0))
    to_later = positions.clone()
    document_keys = (tokens >= first) & (tokens < last)
    weights = torch.zeros(tokens.shape[0], dtype=torch.float32, device="cpu")
    if layout.document_tokens:
        if plan.placement == "to_end":
            to_later[document_keys] += document_shifts(layout, plan.placement)
        if plan.one_of_many:
            count = sum(length > 0 for length in layout.document_lengths)
            weights[document_keys] = -log(count)
    owner = torch.full_like(tokens, -1)
    for index, (begin, end) in enumerate(layout.documents):
        owner[(tokens >= begin) & (tokens < end)] = index
    mine = owner[start : start + columns, None]
    other_document = (mine >= 0) & (owner >= 0) & (mine != owner)
    hidden = (tokens > query) | (tokens < 0) | other_document
    later = query >= last
    return (
        (torch.where(later, to_later, positions).float(), torch.where(later, weights, 0.0)),
        hidden,
    )
