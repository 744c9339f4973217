"""Logits and log-probabilities."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, PromptLayout, applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import PINE, Method, NoMethod, Permutation, PositionalHiddenStates
from rag_middle.tokens import TokenizedPrompt, encode
from tests.adapters import PromptTuned, Wrapper
from tests.conftest import FamilyModel
from tests.families import FAMILIES
from tests.generation.test_generate import METHODS
from tests.prompts import laid_out

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
ATOL = 2e-5  # float32: several tokens at once round differently from one at a time


def one_by_one(
    model: RagMiddleModel, prompt: ContextPrompt, ids: tuple[int, ...], method: Method
) -> list[float]:
    """The slow way: each token fed alone, as generation would."""
    tokens = encode(model.tokenizer, prompt)
    found = []
    with torch.no_grad(), applied(model.model, method, [tokens]):
        output = model.model(input_ids=torch.tensor([tokens.input_ids]), use_cache=True)
        for token in ids:
            found.append(output.logits[0, -1].log_softmax(-1)[token].item())
            output = model.model(
                input_ids=torch.tensor([[token]]), **{MODEL_CACHE: output[MODEL_CACHE]}
            )
    return found


@each_method
@pytest.mark.one_in(3)
def test_scores_are_those_of_tokens_fed_one_by_one(
    model: RagMiddleModel, prompts: list[ContextPrompt], method: Method
) -> None:
    continuations = [" the river", (5, 6, 7, 8, 9, 10), " a", "Paris."]
    scores = model.score_batch(prompts, continuations, method=method, max_batch_size=3)
    for prompt, continuation, score in zip(prompts, continuations, scores, strict=True):
        expected = one_by_one(model, prompt, score.token_ids, method)
        assert list(score.log_probabilities) == pytest.approx(expected, abs=ATOL)
        assert score.total == pytest.approx(sum(expected), abs=ATOL * len(expected))
        assert not score.is_greedy
        if isinstance(continuation, str):
            assert model.tokenizer.decode(score.token_ids) == continuation


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "qwen3_next", "bloom"])
def test_windows_sinks_hybrids_and_alibi_are_scored_too(
    family_model: FamilyModel, tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    model = RagMiddleModel(family_model(family), tokenizer)
    prompts = [
        TokenizedPrompt(input_ids=tuple(range(30, 30 + length)), layout=PromptLayout(length=length))
        for length in (25, 40)
    ]
    written = [model.generate(prompt, max_new_tokens=5) for prompt in prompts]
    scores = model.score_batch(prompts, [g.token_ids for g in written])
    assert all(score.is_greedy for score in scores)


def beyond_a_length(family: str) -> PreTrainedModel:
    """A model whose frequencies are others beyond 32 tokens."""
    if family != "phi3":
        return FAMILIES[family].build()
    scaling = FAMILIES["llama_longrope"].config().rope_parameters
    return FAMILIES["phi3"].build(
        rope_parameters={**scaling, "partial_rotary_factor": 1.0},
        original_max_position_embeddings=32,
    )


def reads_all_anew(model: Any) -> bool:
    """Whether generation beyond the length begins anew with all tokens, as it has to."""
    ids = torch.ones(1, 33, dtype=torch.long)
    with torch.no_grad():
        cache = model(ids[:, :32], use_cache=True)[MODEL_CACHE]
    prepared = model.prepare_inputs_for_generation(
        ids, attention_mask=ids, next_sequence_length=1, use_cache=True, **{MODEL_CACHE: cache}
    )
    return int(prepared["input_ids"].shape[1]) == 33


@pytest.mark.parametrize("method", [NoMethod(), PINE(), Permutation(orders=2)])
@pytest.mark.parametrize("family", ["llama_longrope", "phi3"])
@pytest.mark.parametrize("length", [27, 32, 33])
@pytest.mark.one_in(6)
def test_answers_that_pass_the_length_of_other_frequencies_score_as_generated(
    tokenizer: PreTrainedTokenizerFast, family: str, method: Method, length: int
) -> None:
    """Phi-3 reads prompt and answer anew there, the others go on from what is cached."""
    base = beyond_a_length(family)
    if family == "phi3" and length <= 32 and not reads_all_anew(base):
        pytest.skip("this version of transformers reads the last token alone there")
    model = RagMiddleModel(base, tokenizer, method=method)
    layout = PromptLayout(length=length, documents=((4, 12), (12, 19)))
    prompt = laid_out(layout, range(30, 30 + length))
    written = model.generate(prompt, max_new_tokens=10, logprobs=True)
    score = model.score(prompt, written.token_ids)
    expected = [token.log_probability for token in written.log_probabilities]
    assert list(score.log_probabilities) == pytest.approx(expected, abs=ATOL)


@pytest.mark.parametrize("family", ["llama_dynamic", "llama_longrope", "phi3"])
def test_a_long_answer_of_a_short_prompt_changes_no_frequencies_of_others(
    tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    model = RagMiddleModel(beyond_a_length(family), tokenizer)
    prompts = [laid_out(PromptLayout(length=length)) for length in (5, 28)]
    continuations = [tuple(range(40, 60)), (5, 6, 7)]
    together = model.score_batch(prompts, continuations)
    for prompt, ids, score in zip(prompts, continuations, together, strict=True):
        alone = model.score(prompt, ids)
        assert score.log_probabilities == pytest.approx(alone.log_probabilities, abs=ATOL)


def test_virtual_tokens_come_once_and_stand_before_each_prompt_alone(
    llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[ContextPrompt]
) -> None:
    """A wrapper puts them before whatever it is given, and PEFT's before the padding of a row."""
    tuned: Any = PromptTuned(llama)
    tuned.active_peft_config = SimpleNamespace(is_prompt_learning=True)
    model = RagMiddleModel(tuned, tokenizer)
    with pytest.raises(UnsupportedGenerationError, match="5 tokens before the prompt"):
        model.score(prompts[0], (5, 6))
    with pytest.raises(UnsupportedGenerationError, match="tokens in the first forward pass"):
        model.score(prompts[0], (5, 6), method=PositionalHiddenStates(channels=(5,), factor=-1.0))
    ids = [(5,)] * len(prompts)
    together = model.score_batch(prompts, ids)
    for prompt, score in zip(prompts, together, strict=True):
        expected = model.logits(prompt).log_softmax(-1)[5]
        assert score.total == pytest.approx(expected.item(), abs=ATOL)


def test_several_tokens_behind_an_activated_adapter_are_refused(
    llama: Any, tokenizer: Any, prompt: ContextPrompt
) -> None:
    adapted: Any = Wrapper(llama)
    adapted.active_peft_config = SimpleNamespace(alora_invocation_tokens=[5])
    model = RagMiddleModel(adapted, tokenizer)
    with pytest.raises(UnsupportedGenerationError, match="An activated LoRA"):
        model.score(prompt, (5, 6, 7))


@each_method
def test_logits_are_the_models_under_the_method(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method
) -> None:
    tokens = model.encode(prompt, method=method)
    with torch.no_grad(), applied(model.model, method, [tokens]):
        expected = model.model(input_ids=torch.tensor([tokens.input_ids])).logits[0]
    everywhere = model.logits(prompt, method=method, all_positions=True)
    assert torch.allclose(everywhere, expected, atol=ATOL)
    assert torch.allclose(model.logits(prompt, method=method), expected[-1], atol=ATOL)
    assert not everywhere.requires_grad
