"""What users of HuggingFaceLLM write, and log-probabilities where OpenAI's LLM has them."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.llms.rag_middle import RagMiddleLLM
from llama_index.llms.rag_middle import loading as loading_module
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, pipeline

from rag_middle import UnsupportedGenerationError

#: Of llama-index-llms-huggingface 0.6.
POSITIONS = (
    "context_window max_new_tokens query_wrapper_prompt tokenizer_name model_name model tokenizer "
    "device_map stopping_ids tokenizer_kwargs tokenizer_outputs_to_remove model_kwargs "
    "generate_kwargs is_chat_model callback_manager system_prompt messages_to_prompt "
    "completion_to_prompt pydantic_program_mode output_parser"
)


def test_arguments_stand_where_hugging_face_llm_has_them() -> None:
    parameters = inspect.signature(RagMiddleLLM.__init__).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", *POSITIONS.split()]


def test_a_pipeline_brings_its_options(
    network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, marked: str, make_llm: Any
) -> None:
    made = pipeline(
        "text-generation", model=network, tokenizer=tokenizer, max_new_tokens=3, do_sample=False
    )
    llm = RagMiddleLLM(model=made)
    assert llm.metadata.num_output == 3
    assert llm.complete(marked).text == make_llm(max_new_tokens=3).complete(marked).text
    changed = RagMiddleLLM(model=made, max_new_tokens=2, generate_kwargs={"temperature": 0.5})
    assert changed.complete(marked).raw["usage"]["completion_tokens"] == 2
    as_usual = RagMiddleLLM(model=made, max_new_tokens=DEFAULT_NUM_OUTPUTS)
    assert as_usual.metadata.num_output == DEFAULT_NUM_OUTPUTS != 3
    made.task = "summarization"
    with pytest.raises(UnsupportedGenerationError, match="only pipelines for 'text-generation'"):
        RagMiddleLLM(model=made)
    with pytest.raises(UnsupportedGenerationError, match="model must be a name"):
        RagMiddleLLM(model=3)


def test_the_token_of_the_hub_is_used_and_shown_nowhere(
    network: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[dict[str, Any]] = []
    shared = loading_module.shared_model

    def noted(*args: Any, **given: Any) -> Any:
        used.append(given)
        return shared(*args, **given)

    monkeypatch.setattr(loading_module, "shared_model", noted)
    llm = RagMiddleLLM(model_name=saved, token="hf_SECRET")
    for name in ("model_options", "tokenizer_options"):
        assert used[0][name] == {"token": "hf_SECRET"}
    shown = [repr(llm), llm.to_json(), str(llm.to_dict()), str(llm.__reduce__())]
    assert "hf_SECRET" not in str(shown)
    with pytest.raises(UnsupportedGenerationError, match="token"):
        RagMiddleLLM(model=network, tokenizer=tokenizer, token="hf_SECRET")


def test_log_probabilities_come_with_completions_and_answers(make_llm: Any, marked: str) -> None:
    llm = make_llm(max_new_tokens=3)
    told = llm.complete(marked, logprobs=True, top_logprobs=2)
    assert told.logprobs is not None
    assert "".join(position[0].token for position in told.logprobs) == told.text
    assert {len(position) for position in told.logprobs} == {2}
    assert all(first.logprob >= other.logprob for first, other in told.logprobs)
    assert llm.chat([ChatMessage(marked)], logprobs=True, top_logprobs=2).logprobs == told.logprobs
    *_, last = llm.stream_chat([ChatMessage(marked)], logprobs=True)
    assert last.logprobs == [position[:1] for position in told.logprobs]
    assert llm.complete(marked).logprobs is None
    assert "log_probabilities" not in told.raw["rag_middle"]
