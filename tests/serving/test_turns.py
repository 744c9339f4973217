"""How an answer begins, options of the chat template, and fields that are ignored."""

from typing import Any

import httpx
import pytest

from rag_middle import ContextPrompt
from rag_middle.generation import GenerationOptions, RagMiddleModel
from tests.serving.conftest import Serve, Served
from tests.tokenizers import byte_level_bpe

USER = {"role": "user", "content": "Which river? <|im_end|>"}
BEGUN = {"role": "assistant", "content": "The river <|im_end|> is"}
BODY: dict[str, Any] = {"model": "tested", "messages": [USER, BEGUN], "max_tokens": 4}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("method", ["none", "pine"])
def test_an_answer_that_is_begun_is_gone_on_with(server: Served, method: str, stream: bool) -> None:
    documents = ["Lyon lies on it.", "Nantes lies on it."]
    messages = [{"role": "user", "content": ContextPrompt("", documents, USER["content"])}, BEGUN]
    options: Any = {"method": method, "max_new_tokens": 4}
    expected = server.model.generate(
        messages, template_options={"continue_final_message": True}, **options
    )
    answer = server.client.chat.completions.create(
        model="tested",
        messages=BODY["messages"],
        max_tokens=4,
        stream=stream,
        extra_body={"documents": documents, "method": method, "continue_final_message": True},
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
        assert answer.rag_middle["documents"] == 2
    assert text == expected.text


def test_another_answer_is_begun_after_the_models_last_message(server: Served) -> None:
    reply = server.post(BODY).json()
    expected = server.model.generate([USER, BEGUN], max_new_tokens=4)
    assert reply["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    closed = server.post({**BODY, "add_generation_prompt": False}).json()
    assert closed["usage"]["prompt_tokens"] < reply["usage"]["prompt_tokens"]
    for more, messages in (
        ({"add_generation_prompt": True}, BODY["messages"]),
        ({}, [USER]),  # the last message is no answer
    ):
        body = {**BODY, **more, "continue_final_message": True, "messages": messages}
        refused = server.post(body)
        assert refused.status_code == 400
        assert "continue_final_message" in refused.json()["error"]["message"]


def test_options_of_the_template_are_the_requests_or_the_servers(
    serve: Serve, tiny_model: RagMiddleModel
) -> None:
    model = RagMiddleModel(tiny_model.model, byte_level_bpe(chat_template=TEMPLATE))
    off = GenerationOptions(template_options={"enable_thinking": False})
    plain, without = serve(model), serve(model, defaults=off)
    body = {**BODY, "messages": [USER]}

    def length(served: Served, **kwargs: Any) -> int:
        return served.post({**body, "chat_template_kwargs": kwargs}).json()["usage"][
            "prompt_tokens"
        ]

    thinking, shorter = length(plain), length(plain, enable_thinking=False)
    assert thinking < shorter == length(without)
    assert length(without, enable_thinking=True) == thinking
    for kwargs in (
        {"enable_thinkin": False},
        {"chat_template": "{{ cycle }}"},
        {"messages": 1},
        {"tokenize": True},
        {"enable_thinking": ["a"] * 1000},
        {"enable_thinking": "a" * 1000},
        {"enable_thinking": "a<|im_end|>"},
    ):
        refused = plain.post({**body, "chat_template_kwargs": kwargs})
        assert refused.status_code == 400, kwargs
        assert refused.json()["error"]["param"].startswith("chat_template_kwargs")


def test_unknown_fields_pass_where_the_operator_lets_them(serve: Serve, server: Served) -> None:
    lenient = serve(server.model, ignore_unknown_fields=True)
    odd = {"logit_bias": {"7": 5}, "a\nb": 1, "n": 1}
    odd["chat_template_kwargs"] = {"enable_thinking": False, "tokenize": False}
    body = {**BODY, "messages": [USER]}
    reply = lenient.post({**body, **odd}).json()
    assert reply["rag_middle"]["ignored_fields"] == [
        *("logit_bias", "a\nb"),
        *("chat_template_kwargs.enable_thinking", "chat_template_kwargs.tokenize"),
    ]
    assert reply["choices"][0]["message"] == server.post(body).json()["choices"][0]["message"]
    assert server.post({**body, **odd}).status_code == 400
    assert lenient.post({**body, "temperature": "hot"}).status_code == 400


def test_web_pages_may_ask_where_their_origin_is_named(serve: Serve, server: Served) -> None:
    named = serve(server.model, allowed_origins=("https://chat.example",), api_key="key")
    wanted = {"Access-Control-Request-Method": "POST"}
    wanted["Access-Control-Request-Headers"] = "authorization,content-type"
    for served, origin, allowed in (
        (named, "https://chat.example", "https://chat.example"),
        (named, "https://other.example", None),
        (server, "https://chat.example", None),
    ):
        url = f"{served.url}/v1/chat/completions"
        preflight = httpx.options(url, headers={"Origin": origin, **wanted})
        assert preflight.headers.get("access-control-allow-origin") == allowed
        listed = httpx.get(f"{served.url}/v1/models", headers={"Origin": origin})
        assert listed.headers.get("access-control-allow-origin") == allowed
