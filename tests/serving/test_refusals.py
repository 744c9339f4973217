"""What is refused, how it is told, and that the server lives on."""

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from rag_middle.cli.serve import public_names
from rag_middle.errors import MethodConfigError
from rag_middle.serving import ServerSettings, create_app, named_methods
from tests.serving.conftest import METHODS, Serve, Served

MESSAGES = [{"role": "user", "content": "Which river?"}]
BODY: dict[str, Any] = {"model": "tested", "messages": MESSAGES, "max_tokens": 1}


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, which is in OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def send(server: Served, content: Any) -> httpx.Response:
    url, headers = f"{server.url}/v1/chat/completions", {"content-type": "application/json"}
    return httpx.post(url, content=content, headers=headers, timeout=60, verify=False)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"\xff\xfe"),
        b'{"model": "tested", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_malformed_bodies(server: Served, body: bytes) -> None:
    refusal(send(server, body))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("messages", value) for value in ([], MESSAGES * 2001, [{"role": "owner"}])),
        *(("max_tokens", value) for value in (0, "7", True, 10**30)),
        *(("temperature", 2.5), ("n", 65), ("seed", 2**63), ("stop", ["a"] * 17), ("stop", 3)),
        ("top_logprobs", 2),  # without logprobs
        *(("documents", value) for value in ("text", [{"title": "without text"}])),
        ("documents", [{"text": "fox", "title": "i" * 1001}]),
    ],
    ids=str,
)
def test_values_that_make_no_sense(server: Served, field: str, value: Any) -> None:
    error = refusal(server.post({**BODY, field: value}))
    assert str(error["param"]).startswith(field)
    if field == "stop":  # a text or a list: of the one that was meant
        assert isinstance(value, int) or "valid string" not in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("functions", [{"name": "f"}]), ("logit_bias", {"7": 5}), ("frequency_penalty", 0.5)),
        *(("modalities", ["text", "audio"]), ("guided_json", {"type": "object"}), ("best_of", 2)),
        ("metod", "pine"),
    ],
)
def test_what_would_change_the_answer_and_is_not_supported(
    server: Served, field: str, value: Any
) -> None:
    message = refusal(server.post({**BODY, field: value}))["message"]
    assert field in message
    assert field != "metod" or "Did you mean 'method'?" in message


def test_the_newer_name_of_a_limit_is_refused_beside_the_older_one(server: Served) -> None:
    error = refusal(server.post({**BODY, "max_completion_tokens": 3}))
    assert error["param"] == "max_completion_tokens"


def test_what_changes_nothing_is_ignored(server: Served) -> None:
    plain = server.post(BODY).json()
    more = {
        **{"user": "somebody", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        **{"parallel_tool_calls": True, "tools": [], "tool_choice": "none"},
        **{"response_format": {"type": "text"}, "frequency_penalty": 0, "logit_bias": {}},
        **{"temperature": None, "stop": None, "stream_options": None},
    }
    assert server.post({**BODY, **more}).json()["choices"] == plain["choices"]


@pytest.mark.parametrize("method", ["profile:/etc/passwd", "pine+siw", ""])
def test_methods_are_those_that_were_fixed_at_the_start(server: Served, method: str) -> None:
    error = refusal(server.post({**BODY, "method": method}))
    assert (error["param"], error["code"]) == ("method", "method_not_allowed")
    assert all(name in error["message"] for name in METHODS)


def test_other_models_routes_and_verbs(server: Served) -> None:
    for name in ("gpt-4", "../tested", ""):
        error = refusal(server.post({**BODY, "model": name}), 404)
        assert error["code"] == "model_not_found"
    assert "/v1/chat/comp" in refusal(httpx.get(f"{server.url}/v1/files"), 404)["message"]
    refusal(httpx.get(f"{server.url}/v1/chat/completions"), 405)
    refusal(server.post({}, "chat/completions/"), 404)  # and no way to the host in a header


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_do_not_fit(server: Served, stream: bool) -> None:
    error = refusal(server.post({**BODY, "max_tokens": 500, "stream": stream}))
    assert error["code"] == "context_length_exceeded"
    assert "max_tokens" in error["message"]
    assert "max_new_tokens" not in error["message"]


def test_log_probabilities_of_all_answers_are_bounded(server: Served) -> None:
    body = {**BODY, "n": 10, "max_tokens": 1000, "logprobs": True, "top_logprobs": 20}
    assert refusal(server.post(body))["param"] == "logprobs"
    assert "context" in refusal(server.post({**body, "top_logprobs": 3}))["message"]


def test_documents_need_a_question(server: Served) -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    error = refusal(server.post({**BODY, "messages": messages, "documents": ["A text."]}))
    assert "role 'user'" in error["message"]


def test_limits(serve: Serve, server: Served) -> None:
    small = serve(server.model, max_documents=2, max_body_bytes=10_000, max_waiting=2)
    body = {**BODY, "documents": ["a", "b", "c"]}
    assert refusal(small.post(body))["param"] == "documents"
    assert small.post({**body, "documents": ["a", "b"]}).status_code == 200
    assert "No more than 2 can wait" in refusal(small.post({**BODY, "n": 3}))["message"]
    sent = json.dumps(BODY).encode()[:-1] + b" " * 20_000
    for content in (sent, iter([sent[:9000], sent[9000:]])):
        try:
            assert "10000 bytes" in refusal(send(small, content), 413)["message"]
        except httpx.WriteError:  # the server has closed the connection before all was sent
            continue
    assert small.chat("Which river?", max_tokens=1).choices


def test_a_body_that_does_not_arrive(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_middle.serving.app._BODY_SECONDS", 0.3)
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


def test_keys(serve: Serve, server: Served) -> None:
    keyed = serve(server.model, api_key="secret-key")
    for header in (
        {},
        {"Authorization": "Bearer none"},
        {"Authorization": "Basic secret-key"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xff"},
    ):
        response = keyed.post(BODY, headers=header)
        assert refusal(response, 401)["code"] == "invalid_api_key"
        assert "secret-key" not in response.text
    assert httpx.get(f"{keyed.url}/v1/models").status_code == 401
    assert httpx.get(f"{keyed.url}/health").status_code == 200
    for right in ("Bearer secret-key", "bearer  secret-key"):
        assert keyed.post(BODY, headers={"Authorization": right}).status_code == 200


def test_the_key_is_asked_for_wherever_the_application_is_mounted(server: Served) -> None:
    methods = named_methods(server.model, ("none",))
    settings = ServerSettings(model_name="a", methods=methods, api_key="secret")
    assert "secret" not in repr(settings)
    app = create_app(server.model, settings)
    good = {"Authorization": "Bearer secret"}
    mounted = Starlette(routes=[Mount("/llm", app=app)])
    for client in (TestClient(mounted), TestClient(app, root_path="/llm")):
        assert client.post("/llm/v1/chat/completions", json={}).status_code == 401
        assert client.get("/llm/v1/models", headers=good).status_code == 200


def test_names_of_methods() -> None:
    entries = ["pine", "profile:/home/me/tuned.json", "mine=profile:a=b.json", "profile:a=b.json"]
    assert public_names(entries) == {
        "pine": "pine",
        "profile:tuned": "profile:/home/me/tuned.json",
        "mine": "profile:a=b.json",
        "profile:a=b": "profile:a=b.json",
    }
    with pytest.raises(MethodConfigError, match="NAME=METHOD"):
        public_names(["profile:a/tuned.json", "profile:b/tuned.json"])


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": ""}] * 50_000},
        {"documents": [[]] * 500_000},
        {"metadata": [[]] * 400_000, "n": 0},
        {"pime" * 500_000: 1},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [0] * 200_000}}},
    ],
    ids=lambda more: next(iter(more))[:20],
)
def test_a_body_of_tiny_parts_keeps_nobody_waiting(server: Served, more: dict[str, Any]) -> None:
    sent = json.dumps({**BODY, **more})
    started = time.process_time()
    response = send(server, sent)
    assert time.process_time() - started < 2
    refusal(response)
    assert len(response.content) < 1000
