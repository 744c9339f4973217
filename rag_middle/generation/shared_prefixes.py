"""Prompts of a batch read one after the other, what they share once.

Prompts that differ only in the gold document's position share a prefix, and so do several questions
about the same documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rag_middle.attention import (
    AttentionPlan,
    ModelTraits,
    Planner,
    applied,
    input_device,
    is_compiled,
    model_traits,
)
from rag_middle.generation.passes import Forward, cached_length
from rag_middle.methods import Method
from rag_middle.methods.document_blocks.document_cache import (
    DocumentCache,
    can_reuse_states,
    with_documents,
)
from rag_middle.tokens import TokenizedPrompt

#: What has to be shared for reading prompts one after the other to pay: a part of all tokens, and
#: so many tokens of a prompt on average, as each pass reads the weights anew. Eight chats of 36
#: tokens take SmolLM2 1.3 times as long where 30 are shared, eight of 460 with documents 0.2 times.
_LEAST_SHARE, _LEAST_TOKENS = 0.1, 64
#: Where all prompts have so many, each keeps a CPU busy by itself; others beside it only push its
#: numbers out of the processor's caches. Seven bases on 1,980 tokens take 6.5 times one prefill, as
#: one batch 8.1 times (`benchmarks/results/overhead_cpu.md`).
_LONG_PROMPT_TOKENS = 1024


def prefilled_cache(
    document_cache: DocumentCache | None,
    model: PreTrainedModel,
    method: Method,
    prompts: Sequence[TokenizedPrompt],
    beams: int = 1,
) -> DynamicCache | None:
    """A KV cache of the first tokens of all prompts, left-padded; the last one is never in it.

    The caller has the model `locked`.

    Args:
        document_cache: of the model, see `with_documents`.
        model: that will run.
        method: of the request.
        prompts: of the request.
        beams: rows of the batch that each prompt takes.

    Returns:
        None where the batch is read as a whole.
    """
    cache = with_documents(document_cache, model, method, prompts)
    if cache is None:
        cache = _row_by_row(model, method, prompts)
    if cache is not None and beams > 1:
        cache.batch_repeat_interleave(beams)
    return cache


@torch.no_grad()
def _row_by_row(
    model: PreTrainedModel, method: Method, prompts: Sequence[TokenizedPrompt]
) -> DynamicCache | None:
    """All but the last token of each prompt, computed after what it shares with an earlier one.

    None where a token's states depend on more than the tokens before it and rotary tables, where
    prompts are not all long and share too little, where a wrapper puts tokens before them; and on
    a GPU, which is predicted to read prompts faster together.
    """
    if len(prompts) < 2 or input_device(model).type != "cpu" or not can_reuse_states(model):
        return None
    traits = model_traits(model)
    plans = [method.for_row(row).plan((prompt,), traits) for row, prompt in enumerate(prompts)]
    if any(change.rotation is None for plan in plans for change in plan.changes):
        return None
    rows = [prompt.input_ids[:-1] for prompt in prompts]
    shared = _shared_with_earlier(rows, plans)
    saved = sum(length for length, _ in shared)
    shares_enough = saved >= max(_LEAST_SHARE * sum(map(len, rows)), _LEAST_TOKENS * len(rows))
    if not shares_enough and min(map(len, rows)) < _LONG_PROMPT_TOKENS:
        return None
    last_layer = max(traits.layers) if _may_end_early(model) else None
    caches: list[DynamicCache] = []
    for row, (length, source), plan in zip(rows, shared, plans, strict=True):
        cache = _RowCache()
        for layer, states in enumerate(_layers(caches[source]) if length else ()):
            cache.update(*(state[:, :, :length] for state in states), layer)
        cache.last_layer = last_layer
        if length < len(row):
            prompt = TokenizedPrompt.assembled(prefix=row, documents=(), suffix=(), document_ids=())
            with (
                suppress(_AllStoredError),
                applied(model, _Planned(plan), [prompt], prefilled=length),
            ):
                Forward(model, [prompt]).prefill(all_positions=False, cache=cache)
        if cached_length(cache) != len(row):
            return None
        caches.append(cache)
    return _left_padded(caches, [*map(len, rows)])


@dataclass(frozen=True)
class _Planned(Planner):
    """A row's plan, made of its whole prompt; documents make no difference to rotary tables."""

    made: AttentionPlan

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        return self.made


def _may_end_early(model: PreTrainedModel) -> bool:
    """Whether nobody misses the end of a pass: neither a compiler nor a hook of the user's."""
    return not any(is_compiled(module) or module._forward_hooks for module in model.modules())


class _AllStoredError(Exception):
    """The last layer's keys and values are stored: nothing else of the pass is wanted."""


class _RowCache(DynamicCache):
    """Ends the pass that fills it at the last layer's attention, if it is told which that is.

    Models have no argument for it, and what follows is an eighth of the work of eight layers.
    """

    last_layer: int | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        states = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == self.last_layer:
            raise _AllStoredError
        return states


def _shared_with_earlier(
    rows: Sequence[Sequence[int]], plans: Sequence[AttentionPlan]
) -> list[tuple[int, int]]:
    """How many first tokens of each row an earlier one under the same plan has, and which one.

    0 where too few to use.
    """
    shared = []
    for index, row in enumerate(rows):
        sources = (source for source in range(index) if plans[source] == plans[index])
        lengths = ((_common_prefix_length(rows[source], row), source) for source in sources)
        tokens, source = max(lengths, default=(0, 0))
        # Attention after a cache needs a mask, which makes it slower than that of a whole prompt.
        shared.append((tokens if tokens >= _LEAST_SHARE * len(row) else 0, source))
    return shared


def _common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _left_padded(caches: Sequence[DynamicCache], lengths: Sequence[int]) -> DynamicCache:
    """Caches of one row each as one; those of no tokens have no layers."""
    batch, width = DynamicCache(), max(lengths)
    while any(cache.layers for cache in caches):
        # Taken out: what is copied is freed.
        of_rows: list[Any] = [cache.layers.pop(0) if cache.layers else None for cache in caches]
        first = of_rows[lengths.index(width)]
        keys, values = (
            states.new_zeros(len(caches), states.shape[1], width, states.shape[3])
            for states in (first.keys, first.values)
        )
        for row, (layer, length) in enumerate(zip(of_rows, lengths, strict=True)):
            if layer is not None:
                keys[row, :, width - length :] = layer.keys[0]
                values[row, :, width - length :] = layer.values[0]
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # `update` would copy them
        batch.layers.append(layer)
    return batch


def _layers(cache: DynamicCache) -> list[tuple[Any, Any]]:
    """Keys and values `[b, g, n, d]` of each layer."""
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]
