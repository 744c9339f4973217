"""What requests may ask of an engine that reads documents: options, admission, salts, the cache."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import safe_apply_chat_template
from vllm.renderers.online_renderer import OnlineRenderer

from rag_middle.documents import ContextPrompt, mark
from rag_middle.errors import MethodConfigError
from rag_middle.methods import NoInterDocumentAttention, RoToR
from rag_middle_vllm import register
from rag_middle_vllm.documents import document_request
from rag_middle_vllm.documents.admission import (
    BOUNDS,
    METHOD,
    Admission,
    carried,
    hook_admission,
    hook_cache,
)
from rag_middle_vllm.documents.methods import document_methods
from rag_middle_vllm.documents.openai import hook_renderer
from rag_middle_vllm.documents.runners import check_engine
from rag_middle_vllm.options import resolved
from tests.reader import reader_path

METHODS = {"rotor": {}, "no_inter_document_attention": {}, "parallel_context_windows": {}}
OPTION = {"documents": METHODS}
PROMPT = ContextPrompt(documents=["b b b", "a a", "c"], suffix="Which?")
LISTED = [{"title": "B", "text": "b b b"}, {"text": "a a"}]
ROTOR = {"vllm_xargs": {METHOD: "rotor"}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(reader_path())


@pytest.fixture
def admission() -> Admission:
    return Admission(document_methods(METHODS), max_model_len=100)


def request(ids: int = 20, salt: str | None = None, **extra: Any) -> SimpleNamespace:
    return SimpleNamespace(
        prompt_token_ids=list(range(ids)),
        prompt_embeds=None,
        mm_features=None,
        cache_salt=salt,
        sampling_params=SamplingParams(extra_args=extra or None),
    )


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({}, "object of methods"),
        ({"rotor": None}, "parameters of 'rotor'"),
        ({"rotor": {"routing": 0.0}}, "reads each prompt twice"),
        ({"ms_poe": {}}, "does not serve 'ms_poe'"),
        ({"lpes": {"factors": [1.0]}}, "belong to the whole engine"),
    ],
)
def test_what_is_not_served_request_by_request_is_refused(option: Any, reason: str) -> None:
    with pytest.raises(MethodConfigError, match=reason):
        resolved({"documents": option})


def test_a_request_carries_its_method_and_where_documents_lie(tokenizer: Any) -> None:
    given = SamplingParams(max_tokens=3, extra_args={"other": 1})
    prompt, params = document_request(tokenizer, PROMPT, NoInterDocumentAttention(), given)
    name, bounds = carried(params) or ("", ())
    pieces = [tokenizer.decode(prompt["prompt_token_ids"][a:b]) for a, b in pairwise(bounds)]
    assert name == "no_inter_document_attention"
    assert [piece.strip() for piece in pieces] == ["b b b", "a a", "c"]
    assert params.extra_args["other"] == 1
    assert METHOD not in given.extra_args


def test_rotor_brings_documents_into_its_order(tokenizer: Any) -> None:
    other = PROMPT.permuted([2, 0, 1])
    one, two = (document_request(tokenizer, prompt, RoToR()) for prompt in (PROMPT, other))
    assert one[0] == two[0]
    assert carried(one[1]) == carried(two[1])


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({METHOD: "rotor"}, "where its documents are"),
        ({METHOD: "rotor", BOUNDS: [3]}, "two or more"),
        ({METHOD: "rotor", BOUNDS: [3, 3]}, "ascending"),
        ({METHOD: "rotor", BOUNDS: [3, 21]}, "none beyond the 20"),
        ({BOUNDS: [3, 4]}, "no method"),
    ],
)
def test_a_malformed_request_is_refused(
    admission: Admission, extra: dict[str, Any], reason: str
) -> None:
    with pytest.raises(VLLMValidationError, match=reason):
        admission.admit(request(**extra))


def test_a_prompt_that_was_cut_is_refused(admission: Admission, tokenizer: Any) -> None:
    """vLLM cuts prompts in tokens too, from the left: the documents would be read elsewhere."""
    prompt, params = document_request(tokenizer, PROMPT, NoInterDocumentAttention())
    made = request()
    made.sampling_params = params
    made.prompt_token_ids = prompt["prompt_token_ids"]
    admission.admit(made)
    made.cache_salt = None
    made.prompt_token_ids = made.prompt_token_ids[3:]
    with pytest.raises(VLLMValidationError, match="tokenization_kwargs"):
        admission.admit(made)


def test_salts_tell_method_documents_and_callers_apart(admission: Admission) -> None:
    def salt(method: str, bounds: list[int], ids: int = 20, own: str | None = None) -> str:
        made = request(ids, own, **{METHOD: method, BOUNDS: bounds})
        admission.admit(made)
        return made.cache_salt

    first = salt("rotor", [1, 5, 9])
    assert first == salt("rotor", [1, 5, 9], ids=15)  # another question about the same documents
    others = {
        salt("no_inter_document_attention", [1, 5, 9]),
        salt("rotor", [1, 4, 9]),
        salt("rotor", [1, 5, 9, 10]),
        salt("rotor", [1, 5, 9], own="tenant"),
    }
    assert len(others - {first}) == 4
    equal = Admission(document_methods({"rotor": {"order": "given"}}), 100)
    other = request(**{METHOD: "rotor", BOUNDS: [1, 5, 9]})
    equal.admit(other)
    assert other.cache_salt != first


def test_cached_documents_are_reused_together_or_not_at_all() -> None:
    class Manager:
        empty_kv_cache_blocks = "none"

        def get_computed_blocks(self, request: Any) -> tuple[str, int, int]:
            return "blocks", request.cached, 0

    hook_cache(Manager)

    def computed(cached: int, bounds: list[int] | None) -> Any:
        extra = None if bounds is None else {METHOD: "rotor", BOUNDS: bounds}
        params = SamplingParams(extra_args=extra)
        return Manager().get_computed_blocks(SimpleNamespace(cached=cached, sampling_params=params))

    assert computed(16, [4, 10, 16]) == ("blocks", 16, 0)
    assert computed(15, [4, 10, 16]) == ("none", 0, 0)
    assert computed(15, []) == computed(15, None) == ("blocks", 15, 0)


def test_what_vllm_processes_is_admitted(reader_config: Any) -> None:
    class Processor:
        vllm_config = reader_config

        def process_inputs(self, made: Any, resumable: bool = False) -> Any:
            return made

    hook_admission(Processor)
    assert Processor().process_inputs(request()).cache_salt is None
    with pytest.raises(VLLMValidationError, match="not enabled"):
        Processor().process_inputs(request(**{METHOD: "rotor", BOUNDS: [1, 2]}))


@pytest.mark.parametrize("prompt", [[5, 6, 7], [mark("a")], mark("a")])
@pytest.mark.parametrize(
    ("option", "value"), [("use_beam_search", True), ("truncate_prompt_tokens", 2), ("echo", True)]
)
def test_completions_refuse_what_loses_the_method_or_its_bounds(
    online: Any, prompt: Any, option: str, value: Any
) -> None:
    asked: Any = SimpleNamespace(vllm_xargs={METHOD: "rotor", BOUNDS: [1, 2]}, **{option: value})
    with pytest.raises(VLLMValidationError, match=option):
        asyncio.run(online.preprocess_completion(asked, prompt))


@pytest.fixture(scope="module")
def online(tokenizer: Any) -> Any:
    """vLLM's renderer of requests without an engine; it gives back what it would render."""
    register()
    options: dict[str, Any] = {"max_model_len": 512, "hf_overrides": {"rag_middle": OPTION}}
    config = EngineArgs(model=str(reader_path()), **options).create_engine_config()

    class Renderer:
        renderer = SimpleNamespace(config=config, get_tokenizer=lambda: tokenizer)
        chat_template = default_chat_template_kwargs = None
        chat_template_content_format = "auto"
        effective_chat_template_kwargs = OnlineRenderer.effective_chat_template_kwargs

        async def preprocess_chat(self, request: Any, messages: Any) -> Any:
            return (request.kv_transfer_params or {}).get("prompt_token_ids", messages)

        async def preprocess_completion(self, request: Any, prompt_input: Any) -> Any:
            return prompt_input

    hook_renderer(Renderer)
    return Renderer()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(online: Any, *messages: dict[str, Any], **fields: Any) -> Any:
    asked = ChatCompletionRequest(model="reader", messages=list(messages), **fields)
    return asyncio.run(online.preprocess_chat(asked, list(messages)))


def test_documents_for_the_template_alone_are_refused(online: Any) -> None:
    template: dict[str, Any] = {"chat_template_kwargs": {"documents": LISTED}}
    refused = pytest.raises(VLLMValidationError, match="field 'documents' with a method, or as")
    for text, fields in (
        ("Which?", ROTOR),
        ("Which?", {**ROTOR, "documents": LISTED}),
        (PROMPT.marked, ROTOR),
        (PROMPT.marked, {}),
    ):
        with refused:
            chat(online, user(text), **template, **fields)
    response = ResponsesRequest(input=PROMPT.marked, **template)
    with refused:
        asyncio.run(online.preprocess_chat(response, [user(PROMPT.marked)]))
    online.default_chat_template_kwargs = template["chat_template_kwargs"]  # of the server
    try:
        with refused:
            chat(online, user("Which?"), **ROTOR)
        assert chat(online, user("Which?"), documents=LISTED, **ROTOR)
    finally:
        online.default_chat_template_kwargs = None
    # vLLM's own, where rag-middle reads nothing.
    assert chat(online, user("Which?"), **template) == [user("Which?")]


def test_none_is_the_unmodified_model(online: Any) -> None:
    """`/v1/models` has it among the methods of such an engine."""
    none = {"vllm_xargs": {METHOD: "none", "other": 1}}
    assert chat(online, user("Which?"), **none) == [user("Which?")]
    assert chat(online, user(PROMPT.marked), **none) == chat(online, user(PROMPT.marked))
    completion = CompletionRequest(prompt="Which?", **none)
    assert asyncio.run(online.preprocess_completion(completion, prompt_input="Which?")) == [
        "Which?"
    ]
    assert completion.vllm_xargs == {"other": 1}


def called(arguments: str, **fields: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


RESULT = {"role": "tool", "tool_call_id": "1", "content": "1"}


@pytest.mark.parametrize("documents", [[], ["a a", "c"]])
@pytest.mark.parametrize(
    "history",
    [
        [{"role": "developer", "content": "Be brief."}],
        [{"role": "system", "content": "Be"}, {"role": "developer", "content": "brief."}],
        [user("?"), {"role": "assistant", "content": "x", "tool_calls": []}],
        [user("?"), {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None}],
        [user("?"), {"role": "assistant", "content": "x", "reasoning": "thought"}],
        [user("?"), called('{"x": 1}', reasoning="thought"), RESULT],
        [user("?"), called('{"x"'), RESULT],
    ],
)
def test_a_history_reaches_the_template_as_from_vllm(
    online: Any, history: list[dict[str, Any]], documents: list[str]
) -> None:
    """By a template that knows four roles and minds every call, as those of Llama 3 and Qwen do."""
    tokenizer = AutoTokenizer.from_pretrained(reader_path())
    tokenizer.chat_template = """
        {%- for m in messages -%}
        {%- if 'tool_calls' in m -%}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif -%}
        <think>{{ m.reasoning_content }}</think>
        {%- for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}{% endfor -%}
        {%- elif m.role in ('system', 'user', 'assistant', 'tool') -%}
        {{ m.role }}: {{ m.reasoning_content }} {{ m.content }}
        {%- endif -%}
        {%- endfor -%}"""
    own = type(online)()
    config = online.renderer.config
    own.renderer = SimpleNamespace(config=config, get_tokenizer=lambda: tokenizer)
    plain = deepcopy([*history, user("".join(documents) + "Which?")])  # which vLLM changes
    conversation, *_ = parse_chat_messages(plain, config.model_config, "string")
    expected = safe_apply_chat_template(
        config.model_config, tokenizer, conversation, tokenize=False, add_generation_prompt=True
    )
    messages = deepcopy([*history, user("".join(map(mark, documents)) + "Which?")])
    named = {"vllm_xargs": {METHOD: "no_inter_document_attention"}}
    assert tokenizer.decode(chat(own, *messages, **named)) == expected


def test_prompts_are_not_split_where_documents_are_enabled() -> None:
    register()
    options: dict[str, Any] = {"max_model_len": 64, "hf_overrides": {"rag_middle": OPTION}}
    options["model"] = str(reader_path())
    config = EngineArgs(**options).create_engine_config()
    assert not config.scheduler_config.enable_chunked_prefill
    check_engine(config)
    split = EngineArgs(**options, enable_chunked_prefill=True).create_engine_config()
    with pytest.raises(MethodConfigError, match="together with chunked prefill"):
        check_engine(split)
    config.cache_config.cache_dtype = "fp8"
    with pytest.raises(MethodConfigError, match="8 bits"):
        check_engine(config)
