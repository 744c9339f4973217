"""Options that say which tokens may come, where a text ends, and what is told of each token."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedModel

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel

pytestmark = pytest.mark.thorough


def pairs(ids: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ids))


@pytest.mark.parametrize("method", ["none", "attention_buckets"])
def test_no_sequence_of_tokens_comes_twice(
    model: RagMiddleModel, prompt: ContextPrompt, method: str
) -> None:
    options: dict[str, Any] = {
        "method": method,
        "max_new_tokens": 16,
        "on_missing_documents": "ignore",
    }
    free = model.generate(prompt, **options)
    ids = model.encode(prompt).input_ids
    assert len(set(pairs([*ids, *free.token_ids]))) < len(pairs([*ids, *free.token_ids]))
    bound = model.generate(prompt, no_repeat_ngram_size=2, **options)
    new = pairs([ids[-1], *bound.token_ids])
    assert len(set(new)) == len(new)
    assert not set(new) & set(pairs(ids))
    both = model.batch([prompt, "Why?"], no_repeat_ngram_size=2, **options)
    assert both[0].token_ids == bound.token_ids


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("method", ["none", "attention_buckets", "permutation"])
@pytest.mark.one_in(7)
def test_padding_repeats_nothing(
    model: RagMiddleModel, prompt: ContextPrompt, method: str, size: int, beams: int
) -> None:
    options: dict[str, Any] = {
        "method": method,
        "max_new_tokens": 10,
        "no_repeat_ngram_size": size,
        "num_beams": beams,
    }
    alone = model.generate(prompt, **options).token_ids
    longer = ContextPrompt(prompt.prefix, prompt.documents, prompt.suffix + " so?" * 9)
    written = set(alone) - set(model.encode(prompt).input_ids)
    for pad in (*sorted(written)[:2], 0):
        first, _ = model.batch([prompt, longer], pad_token_id=pad, **options)
        assert first.token_ids == alone


def test_a_request_goes_before_the_models_own_config(
    model: RagMiddleModel, llama: PreTrainedModel, prompt: ContextPrompt
) -> None:
    free = model.generate(prompt, max_new_tokens=12).token_ids
    bound = model.generate(prompt, max_new_tokens=12, no_repeat_ngram_size=1).token_ids
    llama.generation_config.no_repeat_ngram_size = 1
    try:
        assert model.generate(prompt, max_new_tokens=12).token_ids == bound != free
        again = model.generate(prompt, max_new_tokens=12, no_repeat_ngram_size=0)
        assert again.token_ids == free
    finally:
        llama.generation_config.no_repeat_ngram_size = None


def test_other_tokens_may_end_a_text(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    free = model.generate(prompt, max_new_tokens=8)
    for ends in (free.token_ids[3], [free.token_ids[3], 0]):
        ended = model.generate(prompt, max_new_tokens=8, eos_token_id=ends)
        first = free.token_ids.index(free.token_ids[3])
        assert ended.token_ids == free.token_ids[: first + 1]
        assert ended.finish_reason == "stop"
    assert model.generate(prompt, max_new_tokens=8, eos_token_id=[]).finish_reason == "length"


@pytest.mark.parametrize("method", ["none", "attention_buckets"])
def test_log_probabilities_are_those_that_scoring_finds(
    model: RagMiddleModel, prompt: ContextPrompt, method: str
) -> None:
    options: dict[str, Any] = {"method": method, "max_new_tokens": 5}
    told = model.generate(prompt, logprobs=True, top_logprobs=2, **options)
    tokens = told.log_probabilities
    assert tuple(token.token_id for token in tokens) == told.token_ids
    assert all(token.alternatives[0][0] == token.token_id for token in tokens)  # greedy
    assert {len(token.alternatives) for token in tokens} == {2}
    score = model.score(prompt, told.token_ids, method=method)
    assert [t.log_probability for t in tokens] == pytest.approx(score.log_probabilities, abs=1e-4)
    json.dumps(told.to_dict(), allow_nan=False)
    assert model.generate(prompt, **options).log_probabilities == ()
