"""CacheBlend out of a document KV cache: the same logits, and few tokens in the later layers."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, DocumentCache
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import CacheBlend
from tests.contract.running import distance

TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture
def caching(llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> RagMiddleModel:
    return RagMiddleModel(llama, tokenizer, document_cache=DocumentCache())


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 1])
@pytest.mark.parametrize("check_layer", [1, 2])
@pytest.mark.one_in(3)
def test_a_document_cache_gives_the_same(
    share: float,
    check_layer: int,
    model: RagMiddleModel,
    caching: RagMiddleModel,
    prompt: ContextPrompt,
) -> None:
    method = CacheBlend(recompute_share=share, check_layer=check_layer)
    expected = model.logits(prompt, method=method)
    assert caching.document_cache is not None
    for misses in (4, 0):  # the prefix and three documents, and then none
        before = caching.document_cache.misses
        assert distance(caching.logits(prompt, method=method), expected) < TOLERANCE
        assert caching.document_cache.misses - before == misses
    if share == 1:
        assert distance(model.logits(prompt, method="none"), expected) < TOLERANCE
    for options in ({}, {"num_beams": 3}):
        answers = [m.generate(prompt, method=method, max_new_tokens=5, **options) for m in
                   (model, caching)]  # fmt: skip
        assert answers[0].token_ids == answers[1].token_ids
    scores = [m.score(prompt, " Lyon", method=method).log_probabilities for m in (model, caching)]
    assert scores[1] == pytest.approx(scores[0], abs=TOLERANCE)


def test_states_are_those_of_other_methods_and_reordering_is_served(
    model: RagMiddleModel, caching: RagMiddleModel, prompt: ContextPrompt
) -> None:
    caching.logits(prompt, method="ape")
    assert caching.document_cache is not None
    misses = caching.document_cache.misses
    expected = model.logits(prompt, method="long_context_reorder+cacheblend")
    logits = caching.logits(prompt, method="long_context_reorder+cacheblend")
    assert distance(logits, expected) < TOLERANCE
    assert caching.document_cache.misses == misses
    # The kept states are as they were: keys were rotated in a copy.
    assert distance(caching.logits(prompt, method="ape"), model.logits(prompt, method="ape")) < (
        TOLERANCE
    )


def test_few_tokens_pass_the_later_layers(caching: RagMiddleModel, prompt: ContextPrompt) -> None:
    layers, method = caching.model.model.layers, CacheBlend(recompute_share=0.25)
    caching.logits(prompt, method=method)  # the model is checked once
    passed: list[list[int]] = [[] for _ in layers]

    def count(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        passed[[layer.mlp for layer in layers].index(module)].append(output.shape[1])

    hooks = [layer.mlp.register_forward_hook(count) for layer in layers]
    try:
        for _ in range(2):  # documents are read again, as hooks may change them, and are then known
            for tokens in passed:
                tokens.clear()
            caching.logits(prompt, method=method)
    finally:
        for hook in hooks:
            hook.remove()
    layout = caching.encode(prompt).layout
    suffix, chosen = layout.length - layout.suffix_start, int(0.25 * layout.document_tokens)
    assert passed[0] == [layout.suffix_start, chosen, suffix]
    assert passed[1:-1] == [[chosen, suffix]] * (len(layers) - 2)
    assert passed[-1] == [suffix]  # of the last layer, only keys and values are of use
