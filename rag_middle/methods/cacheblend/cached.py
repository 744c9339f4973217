"""CacheBlend with documents from a document KV cache: what is not recomputed is not computed.

Two passes make the cache of a prompt up to the end of its documents. One reads all tokens up to the
check layer, where they are compared with the cache, and stops there. The other reads the tokens
that are recomputed, alone and in all layers, and their keys and values replace the cached ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rag_middle.attention import (
    ASPECTS,
    AttentionContext,
    AttentionPlan,
    Layer,
    LayerChange,
    LayerHandler,
    ModelTraits,
    Planner,
    applied,
    input_device,
)
from rag_middle.layout import PromptLayout
from rag_middle.methods.cacheblend.kernels import attend_from_columns, deviations, most_deviating
from rag_middle.methods.parallel_context.attention import moved_keys
from rag_middle.methods.parallel_context.document_states import DocumentStates, filled_cache
from rag_middle.tokens import TokenizedPrompt


@torch.no_grad()
def blended_cache(
    model: PreTrainedModel,
    prompt: TokenizedPrompt,
    pieces: Sequence[DocumentStates],
    *,
    share: float,
    check_layer: int,
    rows: int = 1,
) -> DynamicCache:
    """A cache of a prompt's prefix and documents, as `CacheBlend` would have left it.

    To be called by who has the model's `turn`.

    Args:
        model: see `can_reuse_documents`.
        prompt: with a token in its documents.
        pieces: states of the prefix, if there is one, and of each document that is not empty.
        share: of the tokens in documents that are recomputed.
        check_layer: in which tokens are compared with `pieces`.
        rows: of the batch that the prompt takes.

    Raises:
        UnsupportedArchitectureError: the model cannot take the method.
    """
    ids = prompt.input_ids[: prompt.layout.suffix_start]
    layout = PromptLayout(len(ids), prompt.layout.documents)
    blend = _Blend(filled_cache(pieces, 1), layout, share, check_layer)
    device = input_device(model)
    if share:
        whole = TokenizedPrompt(input_ids=ids, layout=PromptLayout(len(ids)))
        with suppress(_EnoughRead), applied(model, _UpToCheck(blend), [whole]):
            model.base_model(input_ids=torch.tensor([ids], device=device), use_cache=False)
    columns = blend.columns.tolist()
    chosen = TokenizedPrompt(
        input_ids=tuple(ids[column] for column in columns), layout=PromptLayout(len(columns))
    )
    with suppress(_EnoughRead), applied(model, _Recomputing(blend), [chosen]):
        model.base_model(
            input_ids=torch.tensor([chosen.input_ids], device=device),
            # A mask of ones: positions with gaps are taken for several prompts in a row otherwise.
            attention_mask=torch.ones(1, len(columns), dtype=torch.long, device=device),
            position_ids=torch.tensor([columns], device=device),
            use_cache=False,
        )
    if rows > 1:
        blend.cache.batch_repeat_interleave(rows)
    return blend.cache


class _EnoughRead(Exception):  # noqa: N818 - ends a pass, and is no error
    """What the rest of the pass would compute is of no use."""


@dataclass(slots=True)
class _Blend:
    """A cache on its way from documents that were read apart to blended ones.

    Attributes:
        cache: of prefix and documents.
        layout: of what it holds.
        share: of the tokens in documents that are recomputed.
        check_layer: in which tokens are compared.
        columns: of the tokens that are recomputed, ascending. At first the first one in a document:
            it has read nothing but the prefix, so that reading it again changes nothing, and a pass
            needs a token.
        in_order: layers whose keys are rotated to their positions in the prompt.
    """

    cache: DynamicCache
    layout: PromptLayout
    share: float
    check_layer: int
    columns: Tensor = field(init=False)
    in_order: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.columns = torch.tensor([self.layout.prefix_tokens], device="cpu")

    def states(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Keys and values `[1, g, n, d]` of a layer in a forward pass, which may be written to."""
        index = layer.traits.layer
        cached: Any = self.cache.layers[index]
        if index not in self.in_order:
            cached.keys = moved_keys(layer, cached.keys, self.layout, "to_order")
            self.in_order.add(index)
        return cached.keys, cached.values

    def compare(self, layer: Layer, key: Tensor, value: Tensor) -> None:
        """Choose the tokens that are recomputed, by this layer's keys and values of all tokens."""
        cached_key, cached_value = self.states(layer)
        span = slice(self.layout.prefix_tokens, self.layout.suffix_start)
        deviation = deviations(
            key[:, :, span], cached_key[:, :, span], value[:, :, span], cached_value[:, :, span]
        )
        chosen = most_deviating(deviation, self.share)[0].nonzero()[:, 0].cpu()
        if len(chosen):
            self.columns = chosen + span.start


@dataclass(frozen=True, slots=True, eq=False)
class _UpToCheck(Planner, LayerChange):
    """Every token is read, up to the check layer's keys and values."""

    claims = frozenset(ASPECTS)

    blend: _Blend

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        return AttentionPlan.uniform(range(self.blend.check_layer + 1), self)

    def start(self, layer: Layer) -> LayerHandler:
        return _Comparing(self.blend)


class _Comparing(LayerHandler):
    def __init__(self, blend: _Blend) -> None:
        self._blend = blend

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        blend, call, layer = self._blend, context.call, context.layer
        index = layer.traits.layer
        if index == blend.check_layer:
            blend.compare(layer, call.key, call.value)
            raise _EnoughRead
        cached: Any = blend.cache.layers[index]
        cached.keys, cached.values = call.key, call.value
        blend.in_order.add(index)
        return context.proceed()


@dataclass(frozen=True, slots=True, eq=False)
class _Recomputing(Planner, LayerChange):
    """The tokens of some columns are read again, and attend to everything before them."""

    claims = frozenset(ASPECTS)

    blend: _Blend

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        return AttentionPlan.uniform(traits.layers, self)

    def start(self, layer: Layer) -> LayerHandler:
        return _Reading(self.blend)


class _Reading(LayerHandler):
    def __init__(self, blend: _Blend) -> None:
        self._blend = blend

    def attend(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        call, layer = context.call, context.layer
        key, value = self._blend.states(layer)
        columns = self._blend.columns.to(key.device)
        key[:, :, columns] = call.key
        value[:, :, columns] = call.value
        if layer.traits.layer == len(self._blend.cache.layers) - 1:
            raise _EnoughRead
        output = attend_from_columns(
            call.query,
            key,
            value,
            columns,
            layer.score_rule(key.shape[2]),
            call.options.get("s_aux"),
        )
        return output.transpose(1, 2), None
