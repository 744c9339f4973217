"""CacheBlend with documents from a document KV cache: what is not recomputed is not computed.

Two passes make the cache of a prompt up to the end of its documents. One reads all tokens up to the
check layer, where they are compared with the cache, and stops there. The other reads the tokens
that are recomputed, alone and in all layers, and their keys and values replace the cached ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from rag_middle.methods.document_blocks import CacheBlend
from rag_middle.methods.document_blocks.attention import moved_keys
from rag_middle.methods.document_blocks.kernels import (
    attend_from_columns,
    deviations,
    most_deviating,
)
from rag_middle.methods.document_method import Attending
from rag_middle.tokens import TokenizedPrompt


@torch.no_grad()
def blended_cache(
    model: PreTrainedModel, prompt: TokenizedPrompt, apart: DynamicCache, method: CacheBlend
) -> DynamicCache:
    """A cache of a prompt's prefix and documents, as `CacheBlend` would have left it.

    To be called by who has the model `locked`.

    Args:
        model: see `can_reuse_states`.
        prompt: with a token in its documents.
        apart: of the same tokens, one row, with each document read alone after the prefix; it is
            changed.
        method: says which tokens are recomputed.

    Raises:
        UnsupportedArchitectureError: the model cannot take the method.
    """
    ids = prompt.input_ids[: prompt.layout.suffix_start]
    blend = _Blend(apart, PromptLayout(len(ids), prompt.layout.documents), method)
    if method.recompute_share:
        blend.read(model, ids, range(len(ids)), range(method.check_layer + 1), blend.compare)
    blend.read(model, ids, blend.columns, range(len(apart.layers)), blend.recompute)
    return blend.cache


class _EnoughRead(Exception):  # noqa: N818 - ends a pass, and is no error
    """What the rest of the pass would compute is of no use."""


class _Blend:
    """A cache on its way from documents that were read apart to blended ones.

    Attributes:
        cache: of prefix and documents.
        columns: of the tokens that are recomputed, ascending. At first the first one in a document:
            it has read nothing but the prefix, so that reading it again changes nothing, and a pass
            needs a token.
    """

    def __init__(self, cache: DynamicCache, layout: PromptLayout, method: CacheBlend) -> None:
        self.cache = cache
        self.columns = [layout.prefix_tokens]
        self._layout = layout
        self._method = method
        #: Layers whose keys are rotated to their positions in the prompt.
        self._in_order: set[int] = set()

    def read(
        self,
        model: PreTrainedModel,
        ids: tuple[int, ...],
        columns: Sequence[int],
        layers: range,
        attend: Callable[[AttentionContext], tuple[Tensor, Tensor | None]],
    ) -> None:
        """Let the tokens of some columns pass the model, whose layers `attend` by themselves."""
        tokens, device = tuple(ids[column] for column in columns), input_device(model)
        chosen = TokenizedPrompt(input_ids=tokens, layout=PromptLayout(len(tokens)))
        with suppress(_EnoughRead), applied(model, _Pass(layers, attend), [chosen]):
            model.base_model(
                input_ids=torch.tensor([tokens], device=device),
                # Of ones: positions with gaps are taken for several prompts in a row otherwise.
                attention_mask=torch.ones(1, len(tokens), dtype=torch.long, device=device),
                position_ids=torch.tensor([[*columns]], device=device),
                use_cache=False,
            )

    def compare(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Of all tokens: what the layers before the check layer keep, and who deviates in it."""
        call, index = context.call, context.layer.traits.layer
        if index < self._method.check_layer:
            cached: Any = self.cache.layers[index]
            cached.keys, cached.values = call.key, call.value
            self._in_order.add(index)
            return context.proceed()
        span = slice(self._layout.prefix_tokens, self._layout.suffix_start)
        key, value = self._states(context.layer)
        deviation = deviations(
            call.key[:, :, span], key[:, :, span], call.value[:, :, span], value[:, :, span]
        )
        chosen = most_deviating(deviation, self._method.recompute_share)[0].nonzero()[:, 0]
        self.columns = (chosen + span.start).tolist() or self.columns
        raise _EnoughRead

    def recompute(self, context: AttentionContext) -> tuple[Tensor, Tensor | None]:
        """Of the chosen tokens: their keys and values replace those in the cache."""
        call, layer = context.call, context.layer
        key, value = self._states(layer)
        columns = layer.request.shared(
            ("columns", key.device), lambda: torch.tensor(self.columns, device=key.device)
        )
        key[:, :, columns], value[:, :, columns] = call.key, call.value
        if layer.traits.layer == len(self.cache.layers) - 1:
            raise _EnoughRead
        rule, sinks = layer.score_rule(key.shape[2]), call.options.get("s_aux")
        output = attend_from_columns(call.query, key, value, columns, rule, sinks)
        return output.transpose(1, 2), None

    def _states(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Keys and values `[1, g, n, d]` of a layer in a forward pass, which may be written to."""
        index = layer.traits.layer
        cached: Any = self.cache.layers[index]
        if index not in self._in_order:
            cached.keys = moved_keys(layer, cached.keys, self._layout, "to_order")
            self._in_order.add(index)
        return cached.keys, cached.values


@dataclass(frozen=True, slots=True, eq=False)
class _Pass(Planner, LayerChange):
    """A function that answers the attention calls of some layers."""

    claims = frozenset(ASPECTS)

    layers: Iterable[int]
    attend: Callable[[AttentionContext], tuple[Tensor, Tensor | None]]

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        return AttentionPlan.uniform(self.layers, self)

    def start(self, layer: Layer) -> LayerHandler:
        return Attending(self.attend)
