"""Documents that do not see each other, for BLOOM, which keeps away from the common interface.

BLOOM computes scores by itself and adds a bias by position (ALiBi) and a mask to them. What a query
sees, where keys stand and how much documents weigh are all sums to scores, so one bias of our own
takes the place of both.
"""

from __future__ import annotations

import sys
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from rag_middle.attention.plan import DocumentBlocks
from rag_middle.attention.request import Request
from rag_middle.attention.seam import AttentionCall, begins_prompt, keyword_arguments
from rag_middle.layout import PromptLayout
from rag_middle.ops.document_blocks import document_shifts_to_end, token_positions

__all__ = ["BloomBlockCore", "bloom_attention_modules"]


def bloom_attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Attention modules of a BLOOM model by layer."""
    modules = [m for m in model.modules() if type(m).__name__ == "BloomAttention"]
    return dict(enumerate(modules))


class BloomBlockCore:
    """Keeps documents apart in one BLOOM attention module during one request."""

    def __init__(self, module: nn.Module, plan: DocumentBlocks, request: Request) -> None:
        self._plan = plan
        self._request = request
        self._cached_columns = 0
        heads: int = module.num_heads  # type: ignore[assignment]
        # The model's own function, asked for the bias at position 1.
        tensor = sys.modules[type(module).__module__].build_alibi_tensor
        self._slopes: Tensor = tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Part of the handler protocol; BLOOM never calls the attention interface."""
        raise AssertionError("BLOOM attention does not go through the attention interface")

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: another bias, and no mask beside it."""
        arguments = keyword_arguments(module, args, kwargs)
        hidden: Tensor = arguments["hidden_states"]
        layer: int = module.layer_idx  # type: ignore[assignment]
        rows, columns = hidden.shape[:2]
        if begins_prompt(arguments.get("layer_past"), layer, columns, self._request.width):
            self._cached_columns = 0
        start = self._cached_columns
        self._request.see(rows, columns, start)
        self._request.attention_calls += 1
        self._cached_columns += columns
        keys: int = arguments["alibi"].shape[-1]  # a static cache is longer than what it holds
        arguments["alibi"] = self._bias(start, columns, keys, hidden).flatten(0, 1)
        arguments["attention_mask"] = None
        return (), arguments

    def _bias(self, start: int, columns: int, keys: int, hidden: Tensor) -> Tensor:
        """`[b, h, columns, keys]`, made by the first layer of a forward pass for all of them."""
        made: dict[Any, Tensor] = self._request.shared(("bloom", self._plan), dict)
        name = (start, columns, keys, hidden.dtype, hidden.device)
        if name not in made:
            made.clear()  # those of earlier passes are not needed again
            slopes = self._slopes[:, None, None]
            # Half of the lowest number: a score on top of it must not make it infinite.
            hide = torch.finfo(hidden.dtype).min / 2
            by_group: dict[int, Tensor] = {}
            for group in self._request.groups:
                tokens = torch.arange(keys) - group.padding
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
    weights = torch.zeros(tokens.shape[0])
    if layout.document_tokens:
        if plan.placement == "to_end":
            to_later[document_keys] += document_shifts_to_end(layout)
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
