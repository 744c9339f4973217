"""Documents read once, apart or blended: the same logits, less work, and files that keep them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, DocumentCache
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import APE, CacheBlend, Method, ParallelContextWindows
from tests.contract.running import distance
from tests.generation.conftest import MakeModel
from tests.tiny_models import build, tiny

pytestmark = pytest.mark.thorough

NEW = 6
TOLERANCE = 1e-4  # float32 sums in another order
APART: dict[str, Method] = {
    "parallel_context_windows": ParallelContextWindows(),
    "ape": APE(temperature=0.6, scale=0.8),
}


@pytest.fixture
def cache() -> DocumentCache:
    return DocumentCache()


@pytest.fixture
def caching(make_model: MakeModel, cache: DocumentCache) -> RagMiddleModel:
    return make_model(document_cache=cache)


@pytest.mark.parametrize("method", APART)
def test_logits_are_the_same_with_and_without(
    method: str,
    model: RagMiddleModel,
    caching: RagMiddleModel,
    cache: DocumentCache,
    prompt: ContextPrompt,
) -> None:
    chosen = APART[method]
    expected = model.logits(prompt, method=chosen)
    generation = model.generate(prompt, method=chosen, max_new_tokens=NEW)
    score = model.score(prompt, " Lyon", method=chosen)
    for hits in (0, 4):  # nothing known, then the prefix and three documents
        known = cache.hits
        assert distance(caching.logits(prompt, method=chosen), expected) < TOLERANCE
        assert cache.hits - known == hits
    again = caching.generate(prompt, method=chosen, max_new_tokens=NEW)
    assert again.token_ids == generation.token_ids
    assert again.usage == generation.usage
    cached = caching.score(prompt, " Lyon", method=chosen)
    assert cached.log_probabilities == pytest.approx(score.log_probabilities, abs=TOLERANCE)
    assert cache.misses == 4


@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"temperature": 0.8, "seed": 3}], ids=["beams", "drawn"]
)
def test_batches_and_other_ways_of_generating(
    options: dict[str, Any],
    model: RagMiddleModel,
    caching: RagMiddleModel,
    prompts: list[ContextPrompt],
) -> None:
    expected = model.batch(prompts, method="ape", max_new_tokens=NEW, **options)
    for _ in range(2):
        found = caching.batch(prompts, method="ape", max_new_tokens=NEW, **options)
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert caching.stream(prompts[0], method="ape", max_new_tokens=NEW).result.text == (
        model.generate(prompts[0], method="ape", max_new_tokens=NEW).text
    )


def test_documents_are_shared_by_questions_orders_and_methods(
    caching: RagMiddleModel, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    caching.logits(prompt, method="ape")
    other = ContextPrompt(
        prompt.prefix, prompt.documents[::-1][:2], "Another question?", prompt.separator
    )
    caching.logits(other, method="parallel_context_windows")
    assert (cache.misses, cache.hits) == (4, 3)
    # Another prefix is another place to read from.
    caching.logits(ContextPrompt("Read.\n", prompt.documents, "Why?"), method="ape")
    assert cache.misses == 8


def test_only_tokens_behind_known_documents_go_through_the_model(
    caching: RagMiddleModel, llama: PreTrainedModel, prompt: ContextPrompt
) -> None:
    seen: list[int] = []
    with llama.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    ):
        caching.logits(prompt, method="ape")
        seen.clear()
        caching.generate(prompt, method="ape", max_new_tokens=2)
    suffix = len(caching.encode(prompt).suffix_ids)
    assert seen == [suffix, 1]


def test_changed_weights_and_other_models_have_states_of_their_own(
    tokenizer: PreTrainedTokenizerFast, cache: DocumentCache, prompt: ContextPrompt
) -> None:
    models = [
        build(name, tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa") for name in ("a", "b")
    ]
    for model in models:
        caching = RagMiddleModel(model, tokenizer, document_cache=cache, self_check=False)
        plain = RagMiddleModel(model, tokenizer, self_check=False)
        for _ in range(2):
            expected = plain.logits(prompt, method="ape")
            assert distance(caching.logits(prompt, method="ape"), expected) < TOLERANCE
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(1.5)
    assert (cache.hits, cache.misses) == (0, 16)


# -- memory ----------------------------------------------------------------------------------------


def test_the_least_recently_used_documents_are_dropped(
    make_model: MakeModel, prompt: ContextPrompt
) -> None:
    whole = DocumentCache()
    make_model(document_cache=whole).logits(prompt, method="ape")
    small = DocumentCache(max_bytes=whole.nbytes // 2)
    model = make_model(document_cache=small)
    expected = model.logits(prompt, method="none")
    assert expected.isfinite().all()
    model.logits(prompt, method="ape")
    assert 0 < small.nbytes <= whole.nbytes // 2
    assert 0 < len(small) < len(whole)
    small.clear()
    assert (len(small), small.nbytes) == (0, 0)
    nothing = DocumentCache(max_bytes=0)
    caching = make_model(document_cache=nothing)
    caching.logits(prompt, method="ape")
    assert len(nothing) == 0


# -- disk ------------------------------------------------------------------------------------------


def test_files_serve_a_later_process(
    make_model: MakeModel, prompt: ContextPrompt, tmp_path: Path
) -> None:
    expected = make_model().logits(prompt, method="ape")
    first = make_model(document_cache=DocumentCache(directory=tmp_path / "states"))
    assert first.precompute([prompt]) == 4
    files = sorted((tmp_path / "states").rglob("*"))
    assert {path.suffix for path in files if path.is_file()} == {".safetensors"}
    later = DocumentCache(directory=tmp_path / "states")
    second = make_model(document_cache=later)
    assert distance(second.logits(prompt, method="ape"), expected) < TOLERANCE
    assert (later.hits, later.misses) == (4, 0)
    assert second.precompute([prompt]) == 0


def test_a_damaged_file_is_computed_again(
    make_model: MakeModel, prompt: ContextPrompt, tmp_path: Path
) -> None:
    model = make_model(document_cache=DocumentCache(directory=tmp_path))
    model.precompute([prompt])
    whole = {file: file.read_bytes() for file in tmp_path.rglob("*.safetensors")}
    for file, data in whole.items():
        file.write_bytes(data[:-100])
    later = make_model(document_cache=DocumentCache(directory=tmp_path))
    with pytest.warns(UserWarning, match="is damaged"):
        assert later.precompute([prompt]) == 4
    assert {file: file.read_bytes() for file in whole} == whole


# -- CacheBlend out of the cache -------------------------------------------------------------------


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
