"""What a model's own generation config may say: a few fields are taken, all others are not used."""

from collections.abc import Iterator
from typing import Any

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel

NEW = 6

#: Values that would change the text, break the call or change what it returns, were they used.
UNWANTED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 9.0,
    "top_k": 3,
    "num_beams": 3,
    "penalty_alpha": 0.6,
    "repetition_penalty": 5.0,
    "num_return_sequences": 2,
    "max_new_tokens": 2,
    "min_length": 10_000,
    "use_cache": False,
    "prompt_lookup_num_tokens": 3,
    "compile_config": {"backend": "nothing"},
    "prefill_chunk_size": 4,
    "return_dict_in_generate": True,
    "guidance_scale": 1.5,
}


@pytest.fixture
def own(llama: PreTrainedModel) -> Iterator[Any]:
    """The model's own generation config, put back afterwards."""
    before = llama.generation_config
    llama.generation_config = GenerationConfig(pad_token_id=0)
    yield llama.generation_config
    llama.generation_config = before


def test_what_is_not_used_changes_nothing(
    model: RagMiddleModel, prompts: list[ContextPrompt], own: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = [each.token_ids for each in model.batch(prompts, max_new_tokens=NEW)]
    for name, value in UNWANTED.items():
        setattr(own, name, value)
        assert model.generate(prompts[0], max_new_tokens=NEW).token_ids == expected[0], name
    own.cache_implementation = "static"
    before = own.to_dict()
    capfd.readouterr()
    assert [each.token_ids for each in model.batch(prompts, max_new_tokens=NEW)] == expected
    assert capfd.readouterr().err == ""
    assert own.to_dict() == before


def test_which_tokens_are_possible_is_taken_from_it(
    model: RagMiddleModel, prompt: ContextPrompt, own: Any
) -> None:
    free = model.generate(prompt, max_new_tokens=NEW).token_ids
    for name, value in {
        "suppress_tokens": [free[0]],
        "begin_suppress_tokens": [free[0]],
        "bad_words_ids": [[free[0]]],
        "sequence_bias": {(free[0],): -100.0},
    }.items():
        setattr(own, name, value)
        assert model.generate(prompt, max_new_tokens=1).token_ids[0] != free[0], name
        setattr(own, name, None)
    own.eos_token_id = free[0]
    assert model.generate(prompt, max_new_tokens=NEW).usage.completion_tokens <= 1
    own.min_new_tokens = 10_000  # more than are asked for
    assert free[0] not in model.generate(prompt, max_new_tokens=NEW).token_ids


def test_its_stop_strings_end_a_text_like_its_end_tokens(
    model: RagMiddleModel, tokenizer: PreTrainedTokenizerFast, prompt: ContextPrompt, own: Any
) -> None:
    text = model.generate(prompt, max_new_tokens=NEW).text
    own.stop_strings = text[2:4]
    shown = model.generate(prompt, max_new_tokens=NEW, stop="never written")
    assert (shown.text, shown.finish_reason, shown.stop) == (
        text[: text.index(text[2:4])],
        "stop",
        text[2:4],
    )
