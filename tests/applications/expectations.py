"""What tests of peers expect of a local model, in our words, and where it is tested here.

The tests that are named have to exist, and docs/generate.py makes tables of it. Which of
LangChain's standard tests are skipped is declared where they run, and read as text from there: the
documentation needs no framework.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LANGCHAIN", "LLAMA_INDEX", "Expectation", "markdown", "skipped_standard_tests"]

ROOT = Path(__file__).resolve().parents[2]
_STANDARD = ROOT / "integrations/langchain/tests/conftest.py"


@dataclass(frozen=True)
class Expectation:
    """Something that a peer's tests expect.

    Attributes:
        peer: whose tests.
        expects: what, in Markdown.
        test: of ours, ``file::function`` within the integration's tests; None where it is no matter
            of code.
        differs: what is otherwise here and why; empty where it is met.
    """

    peer: str
    expects: str
    test: str | None
    differs: str = ""


_UNIT = "unit_tests/"
_NAMES = _UNIT + "test_peers_names.py::"
_DEFECTS = _UNIT + "test_peer_defects.py::"
_PIPELINE, _CHAT = "`HuggingFacePipeline`", "`ChatHuggingFace`"

LANGCHAIN = (
    Expectation(
        _PIPELINE,
        "`from_model_id` with `device`, `model_kwargs`, `pipeline_kwargs`, `batch_size`",
        _NAMES + "test_from_model_id_takes_what_pipelines_are_made_of",
    ),
    Expectation(
        _PIPELINE,
        "a pipeline as input, with its options; `model_id` tells its model",
        _NAMES + "test_a_pipeline_brings_its_options",
    ),
    Expectation(
        _PIPELINE,
        "without a model it is GPT-2",
        _NAMES + "test_a_model_has_to_be_named",
        "refused: nobody should get a model they have not chosen",
    ),
    Expectation(
        _PIPELINE,
        "tasks that summarise, translate or look at images",
        _NAMES + "test_what_a_pipeline_could_not_do_here_is_refused",
        "refused: methods change how a decoder reads its prompt",
    ),
    Expectation(
        _PIPELINE,
        "OpenVINO and IPEX",
        _NAMES + "test_what_a_pipeline_could_not_do_here_is_refused",
        "refused: methods need the attention of PyTorch's modules",
    ),
    Expectation(
        _PIPELINE,
        "streams, with `stop`",
        _DEFECTS + "test_stop_strings_of_several_tokens_end_the_answer",
    ),
    Expectation(
        _PIPELINE,
        "several prompts in one call, batched",
        _DEFECTS + "test_a_batch_is_a_batch",
    ),
    Expectation(
        _PIPELINE,
        "`num_return_sequences`",
        _NAMES + "test_they_are_those_of_seeds_that_follow_one_another",
        "`n`; they are drawn, since greedy ones would be the same",
    ),
    Expectation(
        _PIPELINE,
        "`use_cache`, `skip_prompt`, `return_full_text`",
        _NAMES + "test_what_a_pipeline_could_not_do_here_is_refused",
        "refused as unknown: the cache is always used, the prompt never part of the text",
    ),
    Expectation(
        _CHAT,
        "system, human, AI and other roles as the chat template writes them",
        _UNIT + "test_messages.py::test_roles_become_those_of_the_template",
    ),
    Expectation(
        _CHAT,
        "the last message is the user's",
        _DEFECTS + "test_the_last_message_may_be_anyones",
        "may be anyone's",
    ),
    Expectation(
        _CHAT,
        "calls of tools and their results; `bind_tools` with `tool_choice`",
        _UNIT + "test_tools.py::test_calls_come_back_with_what_the_model_says_beside_them",
    ),
    Expectation(
        _CHAT,
        "`with_structured_output`: functions, JSON schemas, JSON mode, `include_raw`",
        _UNIT
        + "test_tools.py::test_structured_output_is_of_the_schema_whatever_the_model_would_write",
    ),
    Expectation(
        _CHAT,
        "usage and finish reason, in `llm_output` and `generation_info` too",
        _NAMES + "test_they_find_usage_model_and_finish_reason",
    ),
    Expectation(
        _CHAT,
        "`logprobs`, `top_logprobs`",
        _NAMES + "test_they_have_the_shape_of_openai",
    ),
    Expectation(
        _CHAT,
        "asynchronous calls and streams",
        _DEFECTS + "test_invoking_and_streaming_asynchronously_work",
    ),
    Expectation(
        _CHAT,
        "`llm=HuggingFaceEndpoint(...)`: models behind an address",
        None,
        "not here: [the library itself](../endpoints.md) asks them",
    ),
)

_LLM, _OPTIONS = "test_llm.py::", "test_llm_options.py::"
_LOCAL, _ANY = "`HuggingFaceLLM`", "every LLM of LlamaIndex"

LLAMA_INDEX = (
    Expectation(
        _ANY, "it is a `BaseLLM`, `class_name()` too", _LLM + "test_is_an_llm_of_llama_index"
    ),
    Expectation(
        _ANY,
        "`complete`, `chat` and their streams agree",
        _LLM + "test_completing_chatting_and_streaming_agree",
    ),
    Expectation(
        _ANY,
        "asynchronous forms",
        _LLM + "test_asynchronous_forms_give_what_the_synchronous_ones_give",
    ),
    Expectation(
        _ANY,
        "`to_dict`, `from_dict`, pickles",
        _LLM + "test_an_llm_survives_its_description_in_json",
    ),
    Expectation(
        _ANY,
        "query pipelines",
        _LLM + "test_llama_index_has_no_query_pipelines_any_more",
        "LlamaIndex has none any more; workflows take their place",
    ),
    Expectation(
        _ANY,
        "function calling, agents, selectors",
        "test_tools.py::test_calls_come_with_the_message",
    ),
    Expectation(
        _LOCAL,
        "its arguments, in its order",
        "test_peers_names.py::test_arguments_stand_where_hugging_face_llm_has_them",
    ),
    Expectation(
        _LOCAL,
        "without a model it is StableLM",
        _LLM + "test_a_missing_model_says_so",
        "refused: nobody should get a model they have not chosen",
    ),
    Expectation(
        _LOCAL,
        "a loaded model and tokenizer; here also a pipeline",
        "test_peers_names.py::test_a_pipeline_brings_its_options",
    ),
    Expectation(
        _LOCAL,
        "a `context_window` beyond the model's own is lowered",
        _LLM + "test_metadata_is_that_of_the_model",
        "what is given holds: methods that rescale positions reach further",
    ),
    Expectation(
        _LOCAL,
        "`system_prompt` and `query_wrapper_prompt` around completions",
        "test_llm_prompts.py::test_system_prompt_and_query_wrapper_reach_the_model",
    ),
    Expectation(
        _LOCAL,
        "`messages_to_prompt`, `completion_to_prompt`",
        "test_llm_control_tokens.py::test_messages_to_prompt_writes_control_tokens_and_messages_cannot",
    ),
    Expectation(
        _LOCAL, "`stopping_ids` end an answer", _OPTIONS + "test_stopping_ids_end_the_text"
    ),
    Expectation(
        _LOCAL,
        "`generate_kwargs` as of `generate`, `do_sample` too",
        _OPTIONS + "test_do_sample_means_what_it_means_in_transformers",
        "a temperature above 0 draws, without `do_sample` too",
    ),
    Expectation(
        _LOCAL,
        "`num_return_sequences`, of which one is returned",
        "test_peers_names.py::test_options_of_generate_are_taken",
        "refused: a response has one text; ask again with another seed",
    ),
    Expectation(
        _LOCAL,
        '`raw["model_output"]`: token ids of prompt and answer',
        _LLM + "test_usage_and_finish_reason_are_in_raw",
        "`raw` has counts, finish reason and what the method did",
    ),
    Expectation(
        "`OpenAI`",
        "`logprobs`, `top_logprobs`",
        "test_peers_names.py::test_log_probabilities_come_with_completions_and_answers",
        "each token comes first in its list, others after it",
    ),
    Expectation(
        "`HuggingFaceInferenceAPI`",
        "models behind an address",
        None,
        "not here: [the library itself](../endpoints.md) asks them",
    ),
)


def skipped_standard_tests() -> dict[str, str]:
    """Standard tests of LangChain that are skipped: name and reason."""
    for statement in ast.parse(_STANDARD.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "SKIPPED":
            names: dict[str, str] = ast.literal_eval(statement.value)
            return names
    raise LookupError(f"{_STANDARD} declares no SKIPPED")


def markdown(expectations: Sequence[Expectation]) -> str:
    """A table of the expectations that are not met, and why."""
    rows = ["| tests of | expect | here |", "| --- | --- | --- |"]
    rows += [f"| {e.peer} | {e.expects} | {e.differs} |" for e in expectations if e.differs]
    return "\n".join(rows)
