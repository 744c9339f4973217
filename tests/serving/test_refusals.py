"""What is refused, how it is told, and that the server lives on."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from rag_middle.cli.serve import public_names
from rag_middle.errors import MethodConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.serving import ServerSettings, create_app, named_methods
from rag_middle.serving.schema import ChatRequest, CompletionRequest
from tests.serving.conftest import METHODS, Serve, Served

MESSAGES = [{"role": "user", "content": "Which river?"}]


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, which is in OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b"[" * 100_000,
        b'{"model": "tested", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b"\xff\xfe",
        b'{"model": "tested", "messages": [{"role": "user", "content": "\\ud800"}]',
        b'{"model": "tested", "temperature": NaN, "messages": []}',
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_malformed_bodies(server: Served, body: bytes, path: str) -> None:
    headers = {"content-type": "application/json"}
    refusal(httpx.post(f"{server.url}/v1/{path}", content=body, headers=headers, timeout=60))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("messages", "Which river?"),
        ("messages", [{"role": "owner", "content": ""}]),
        ("messages", [{"role": "user", "content": 7}]),
        ("messages", [{"content": "Which river?"}]),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "7"),
        ("max_tokens", True),
        ("max_tokens", 10**30),
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "0.5"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("typical_p", 0),
        ("no_repeat_ngram_size", -1),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 65),
        ("seed", 0.5),
        ("seed", 2**63),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", 3),
        ("stream", "yes"),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("top_logprobs", 2),  # without logprobs
        ("documents", "text"),
        ("documents", [7]),
        ("documents", [{"title": "without text"}]),
        ("documents", [{"text": "fox", "score": "high"}]),
        ("method", 7),
    ],
    ids=str,
)
def test_values_that_make_no_sense(server: Served, field: str, value: Any) -> None:
    body = {"model": "tested", "messages": MESSAGES, field: value}
    assert str(refusal(server.post(body))["param"]).startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("logit_bias", {"7": 5}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", True),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("guided_json", {"type": "object"}),
        ("metod", "pine"),
        ("best_of", 2),
    ],
)
def test_what_would_change_the_answer_and_is_not_supported(
    server: Served, field: str, value: Any
) -> None:
    body = {"model": "tested", "messages": MESSAGES, field: value}
    assert field in refusal(server.post(body))["message"]


def test_a_misspelt_field_has_a_suggestion(server: Served) -> None:
    body = {"model": "tested", "messages": MESSAGES, "metod": "pine"}
    assert "Did you mean 'method'?" in refusal(server.post(body))["message"]


def test_the_newer_name_of_a_limit_is_refused_beside_the_older_one(server: Served) -> None:
    body = {"model": "tested", "messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3}
    assert refusal(server.post(body))["param"] == "max_completion_tokens"


def test_what_changes_nothing_is_ignored(server: Served) -> None:
    body = {"model": "tested", "messages": MESSAGES, "max_tokens": 3}
    plain = server.post(body).json()
    more = {
        "user": "somebody",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "modalities": ["text"],
        "temperature": None,
        "stop": None,
        "seed": None,
        "stream_options": None,
        "reasoning_effort": None,
    }
    assert server.post({**body, **more}).json()["choices"] == plain["choices"]


@pytest.mark.parametrize(
    "method",
    [
        "lpes",
        "profile:/etc/passwd",
        "profile:../../secret.json",
        "pine+siw",
        "rotor",  # exists, and is not allowed here
        "",
        "/etc/passwd",
        "tested=pine",
    ],
)
def test_methods_are_those_that_were_fixed_at_the_start(server: Served, method: str) -> None:
    body = {"model": "tested", "messages": MESSAGES, "method": method}
    error = refusal(server.post(body))
    assert (error["param"], error["code"]) == ("method", "method_not_allowed")
    assert all(name in error["message"] for name in METHODS)


@pytest.mark.parametrize("name", ["gpt-4", "../tested", "/etc", ""])
def test_there_is_one_model(server: Served, name: str) -> None:
    error = refusal(server.post({"model": name, "messages": MESSAGES}), 404)
    assert error["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve(name or "x")


def test_other_routes_and_verbs(server: Served) -> None:
    refusal(httpx.get(f"{server.url}/v1/files"), 404)
    refusal(httpx.get(f"{server.url}/v1/chat/completions"), 405)
    refusal(server.post({}, "embeddings"), 404)
    refusal(server.post({}, "chat/completions/"), 404)  # and no way to the host in a header


def test_prompts_that_do_not_fit(server: Served) -> None:
    body = {"model": "tested", "max_tokens": 500, "messages": MESSAGES}
    error = refusal(server.post(body))
    assert error["code"] == "context_length_exceeded"
    assert "max_tokens" in error["message"]
    assert "max_new_tokens" not in error["message"]
    with pytest.raises(openai.BadRequestError):
        server.chat("fox " * 2000)


def test_a_stream_is_refused_before_it_begins(server: Served) -> None:
    body = {"model": "tested", "max_tokens": 500, "messages": MESSAGES, "stream": True}
    refusal(server.post(body))


def test_documents_need_a_question(server: Served) -> None:
    body = {
        "model": "tested",
        "messages": [{"role": "system", "content": "Be brief."}],
        "documents": ["A text."],
    }
    assert "role 'user'" in refusal(server.post(body))["message"]


def test_halves_of_characters_go_in_and_out(server: Served) -> None:
    """A client may cut a text in the middle of a surrogate pair."""
    body = (
        '{"model": "tested", "max_tokens": 2, "documents": [{"text": "\\ud83d", "title": "\\ud83d"'
        '}], "messages": [{"role": "user", "content": "\\ud83d Which river?"}]}'
    )
    headers = {"content-type": "application/json"}
    url = f"{server.url}/v1/chat/completions"
    response = httpx.post(url, content=body, headers=headers, timeout=60)
    assert response.status_code in (200, 400), response.text
    response.json()


def test_more_documents_than_allowed(serve: Serve, server: Served) -> None:
    small = serve(server.model, max_documents=2)
    body = {"model": "tested", "messages": MESSAGES, "documents": ["a", "b", "c"]}
    assert refusal(small.post(body))["param"] == "documents"
    assert small.post({**body, "documents": ["a", "b"]}).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_huge_bodies_are_not_read(serve: Serve, server: Served, chunked: bool) -> None:
    small = serve(server.model, max_body_bytes=10_000)
    body = b'{"model": "tested", "messages": [{"role": "user", "content": "' + b"x" * 20_000
    content = iter([body[:9000], body[9000:]]) if chunked else body
    try:
        response = httpx.post(f"{small.url}/v1/chat/completions", content=content, timeout=60)
    except httpx.WriteError:  # the server has closed the connection
        pytest.skip("the refusal came before the body was sent")
    assert "10000 bytes" in refusal(response, 413)["message"]
    assert small.chat("Which river?", max_tokens=1).choices


def test_a_body_that_does_not_arrive(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_middle.serving.service._BODY_SECONDS", 0.3)
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
        )
        started = time.monotonic()
        answer = connection.recv(4096)
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert time.monotonic() - started < 5


def test_more_answers_than_can_ever_wait(serve: Serve, server: Served) -> None:
    small = serve(server.model, max_waiting=2)
    with pytest.raises(openai.BadRequestError, match="no more than 2 can wait"):
        small.chat("Which river?", n=3, max_tokens=1)


def test_keys(serve: Serve, server: Served) -> None:
    keyed = serve(server.model, api_key="secret-key")
    body = {"model": "tested", "messages": MESSAGES, "max_tokens": 1}
    for header in (
        {},
        {"Authorization": "Bearer none"},
        {"Authorization": "Basic secret-key"},
        {"Authorization": "Bearer secret-key2"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xff"},
    ):
        response = keyed.post(body, headers=header)
        error = refusal(response, 401)
        assert error["code"] == "invalid_api_key"
        assert "secret-key" not in response.text
        assert response.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{keyed.url}/v1/models").status_code == 401
    assert httpx.get(f"{keyed.url}/health").status_code == 200
    good = {"Authorization": "Bearer secret-key"}
    assert keyed.post(body, headers=good).status_code == 200
    assert "secret-key" not in repr(
        ServerSettings(model_name="a", methods={"none": None}, api_key="secret-key")
    )  # type: ignore[dict-item]


def test_the_key_is_asked_for_wherever_the_application_is_mounted(server: Served) -> None:
    settings = ServerSettings(
        model_name="a", methods=named_methods(server.model, ("none",)), api_key="secret"
    )
    app = create_app(server.model, settings)
    good = {"Authorization": "Bearer secret"}
    mounted = Starlette(routes=[Mount("/llm", app=app)])
    for client in (TestClient(mounted), TestClient(app, root_path="/llm")):
        assert client.get("/llm/v1/models").status_code == 401
        assert client.post("/llm/v1/chat/completions", json={}).status_code == 401
        assert client.get("/llm/v1/models", headers=good).status_code == 200
        assert client.get("/llm/health").status_code in (200, 503)  # it was not started


def test_names_of_methods(tiny_model: RagMiddleModel) -> None:
    entries = ["pine", "profile:/home/me/tuned.json", "mine=profile:a=b.json", "profile:a=b.json"]
    assert public_names(entries) == {
        "pine": "pine",
        "profile:tuned": "profile:/home/me/tuned.json",
        "mine": "profile:a=b.json",
        "profile:a=b": "profile:a=b.json",
    }
    assert list(named_methods(tiny_model, ["pine", "none"])) == ["pine", "none"]
    with pytest.raises(MethodConfigError, match="NAME=METHOD"):
        public_names(["profile:a/tuned.json", "profile:b/tuned.json"])


@pytest.mark.parametrize(
    ("field", "value", "param", "message"),
    [
        ("stop", "", "stop.0", "at least 1 character"),
        ("stop", ["a"] * 17, "stop", "at most 16 items"),
        ("stop", ["a", 1], "stop.1", "valid string"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages.0.content.0",
            "this model reads text",
        ),
    ],
)
def test_of_a_text_or_a_list_the_one_that_was_meant_is_named(
    server: Served, field: str, value: object, param: str, message: str
) -> None:
    messages = [{"role": "user", "content": "Which river?"}]
    response = server.post({"model": "tested", "messages": messages, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


ITEM = {"role": "user", "content": "Which river?"}
SOURCE = {"type": "content", "content": [0] * 1000}


@pytest.mark.parametrize(
    ("request_class", "fields"),
    [
        (ChatRequest, {"messages": [0] * 1000}),
        (ChatRequest, {"messages": [ITEM | {"content": [{}] * 1000}]}),
        (ChatRequest, {"messages": [ITEM | {"tool_calls": [0] * 1000}]}),
        (
            ChatRequest,
            {"messages": [ITEM | {"content": [{"type": "document", "source": SOURCE}]}]},
        ),
        (ChatRequest, {"messages": MESSAGES, "documents": [0] * 1000}),
        (ChatRequest, {"messages": MESSAGES, "tools": [0] * 1000}),
        (CompletionRequest, {"prompt": [0] * 1000}),
    ],
)
def test_of_a_list_the_first_wrong_item_is_told(
    request_class: type[ChatRequest | CompletionRequest], fields: dict[str, Any]
) -> None:
    """A body has room for millions, and an error for each would keep all others waiting."""
    with pytest.raises(ValidationError) as raised:
        request_class.model_validate({"model": "tested", **fields})
    assert raised.value.error_count() < 10


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": ""}] * 50_000},
        {"messages": [{"role": "user", "content": [{"type": "image"}] * 80_000}]},
        {"messages": MESSAGES, "documents": [[]] * 500_000},
        {"messages": MESSAGES, "documents": ["a"] * 300_000},
        {"messages": MESSAGES, "metadata": [[]] * 400_000, "n": 0},
        {"messages": MESSAGES, "method": "pime" * 500_000},
        {"messages": MESSAGES, "pime" * 500_000: 1},
    ],
)
def test_a_body_of_tiny_parts_keeps_nobody_waiting(server: Served, body: dict[str, Any]) -> None:
    sent = json.dumps({"model": "tested", **body})
    started = time.process_time()
    response = httpx.post(
        f"{server.url}/v1/chat/completions",
        content=sent,
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert time.process_time() - started < 2
    refusal(response)


def test_names_that_are_not_there_are_not_said_at_length(server: Served) -> None:
    for field in ("model", "method"):
        body = {"model": "tested", "messages": MESSAGES, field: "a" * 100_000}
        response = server.post(body)
        assert len(response.content) < 1000
        assert f"There is no {field} 'aaa" in response.json()["error"]["message"]


def test_a_form_of_any_length_is_refused_before_it_is_read(server: Served) -> None:
    schema = {"type": "object", "title": [0] * 200_000}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    error = refusal(server.post({"model": "tested", "messages": MESSAGES, "response_format": form}))
    assert error["param"] == "response_format"
    assert "500,000 are the most" in error["message"]
