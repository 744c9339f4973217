"""What a model's own generation config may say: every field is taken, not used, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.own_config import NOT_USED, REFUSED, TAKEN

NEW = 6

#: A value for every field that this package does not use: one that would change the text, break
#: the call or change what it returns, were it used.
UNWANTED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 9.0,
    "top_k": 3,
    "top_p": 0.1,
    "min_p": 0.9,
    "top_h": 0.1,
    "typical_p": 0.1,
    "epsilon_cutoff": 0.5,
    "eta_cutoff": 0.5,
    "num_beams": 3,
    "num_beam_groups": 3,
    "diversity_penalty": 1.0,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "repetition_penalty": 5.0,
    "num_return_sequences": 2,
    "max_new_tokens": 2,
    "max_length": 3,
    "min_length": 10_000,
    "forced_eos_token_id": 7,
    "forced_bos_token_id": 7,
    "decoder_start_token_id": 7,
    "encoder_repetition_penalty": 5.0,
    "encoder_no_repeat_ngram_size": 1,
    "use_cache": False,
    "max_cache_len": 4,
    "use_mtp": True,
    "is_assistant": True,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.9,
    "prompt_lookup_num_tokens": 3,
    "max_matching_ngram_size": 3,
    "assistant_early_exit": 1,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "compile_config": {"backend": "nothing"},
    "disable_compile": False,
    "continuous_batching_config": {},
    "prefill_chunk_size": 4,
    "low_memory": True,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_scores": True,
    "output_logits": True,
    "return_dict_in_generate": True,
    "transformers_version": "4.0.0",
}
REFUSED_VALUES: dict[str, Any] = {
    "guidance_scale": 1.5,
    "watermarking_config": object(),
    "token_healing": True,
    "constraints": [object()],
    "force_words_ids": [[5]],
    "max_time": 0.001,
}


@pytest.fixture
def own(llama: PreTrainedModel) -> Iterator[Any]:
    """The model's own generation config, put back afterwards."""
    before = llama.generation_config
    llama.generation_config = GenerationConfig(pad_token_id=0)
    yield llama.generation_config
    llama.generation_config = before


def test_every_field_of_transformers_is_decided_once() -> None:
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    decided = [*TAKEN, *NOT_USED, *REFUSED]
    assert not fields - set(decided), "decide in generation/own_config.py what these fields do"
    assert len(decided) == len(set(decided))


def test_what_is_not_used_changes_nothing(
    model: RagMiddleModel, prompts: list[ContextPrompt], own: Any
) -> None:
    expected = [each.token_ids for each in model.batch(prompts, max_new_tokens=NEW)]
    streamed = "".join(model.stream(prompts[0], max_new_tokens=NEW))
    assert set(UNWANTED) == NOT_USED
    for name, value in UNWANTED.items():
        setattr(own, name, value)
        shown = model.batch(prompts[:1], max_new_tokens=NEW)
        assert shown[0].token_ids == expected[0], name
        setattr(own, name, None)
    for name, value in UNWANTED.items():
        setattr(own, name, value)
    assert [each.token_ids for each in model.batch(prompts, max_new_tokens=NEW)] == expected
    assert "".join(model.stream(prompts[0], max_new_tokens=NEW)) == streamed


def test_what_cannot_be_served_is_refused_before_anything_runs(
    model: RagMiddleModel, prompt: ContextPrompt, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.model), "forward", None)  # nothing runs
    assert set(REFUSED_VALUES) == set(REFUSED)
    own.field_of_tomorrow = None
    for name, value in REFUSED_VALUES.items():
        setattr(own, name, value)
        step = re.escape(f"model.generation_config.{name} = None")
        for use in (model.generate, model.stream):
            with pytest.raises(UnsupportedGenerationError, match=step):
                use(prompt, max_new_tokens=NEW)
        setattr(own, name, None)


def test_neutral_values_of_what_is_refused_are_no_obstacle(
    model: RagMiddleModel, prompt: ContextPrompt, own: Any
) -> None:
    expected = model.generate(prompt, max_new_tokens=NEW).token_ids
    own.guidance_scale, own.token_healing, own.constraints = 1.0, False, []
    assert model.generate(prompt, max_new_tokens=NEW).token_ids == expected


def test_a_field_that_only_a_newer_transformers_has_is_refused(
    model: RagMiddleModel, prompt: ContextPrompt, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = GenerationConfig.__init__

    def with_new_field(self: Any, **settings: Any) -> None:
        make(self, **settings)
        self.new_field = None

    monkeypatch.setattr(GenerationConfig, "__init__", with_new_field)
    own.new_field = None
    model.generate(prompt, max_new_tokens=1)
    own.new_field = 3
    with pytest.raises(UnsupportedGenerationError, match="does not know what it does"):
        model.generate(prompt, max_new_tokens=1)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("suppress_tokens", "ab"), ("bad_words_ids", []), ("cache_implementation", "none such")],
)
def test_a_value_that_transformers_refuses_is_named(
    model: RagMiddleModel, prompt: ContextPrompt, own: Any, name: str, value: Any
) -> None:
    setattr(own, name, value)
    with pytest.raises(UnsupportedGenerationError, match=rf"generation config says \({name}="):
        model.generate(prompt, max_new_tokens=1)
