"""What servers do to requests, and what is said of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from rag_middle.documents import ContextPrompt
from rag_middle.endpoint import EndpointModel, EndpointWarning
from rag_middle.endpoint.server import api_key, checked_url
from rag_middle.errors import ConfigError, EndpointError, UnsupportedGenerationError
from tests.endpoint.server import Reply, Request, Said, Server, answer, events, saying, serving

KEY = "sk-secret-0123456789abcdef"
PROMPT = ContextPrompt(prefix="Read.\n", documents=["one", "two"], suffix="Which?")


def _scripted(*replies: Said) -> Reply:
    """The replies one after the other, the last one again and again."""
    waiting = list(replies)
    return lambda request: waiting.pop(0) if len(waiting) > 1 else waiting[0]


# -- attempts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_failures_that_may_pass_are_tried_again(status: int) -> None:
    failed = Said({"error": {"message": "busy"}}, status)
    with serving(_scripted(failed, failed, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"
        assert len(server.asked) == 3


def test_a_server_that_keeps_failing_is_left_alone() -> None:
    failed = Said({"error": {"message": "out of memory"}}, 500)
    with serving(_scripted(failed)) as server:
        model = EndpointModel(server.url, retries=2)
        with pytest.raises(EndpointError, match=r"500.*out of memory.*again later") as raised:
            model.generate(PROMPT)
        assert raised.value.status == 500
        assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_refusals_are_not_tried_again(status: int) -> None:
    with serving(_scripted(Said({"error": {"message": "no"}}, status))) as server:
        model = EndpointModel(server.url)
        with pytest.raises(EndpointError, match=f"status {status}.*'no'"):
            model.generate(PROMPT)
        assert len(server.asked) == 1


def test_documents_follow_no_redirect() -> None:
    with serving(saying("elsewhere")) as other, serving(saying("x")) as server:
        model = EndpointModel(server.url)
        server.reply = _scripted(Said({}, 307, {"Location": f"{other.url}/chat/completions"}))
        with pytest.raises(EndpointError, match="status 307"):
            model.generate(PROMPT)
        assert not other.asked


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"no connection.*Is the server running"):
        EndpointModel(f"http://127.0.0.1:{port}", retries=50)
    assert time.monotonic() - started < 5  # a wrong address is not tried again and again


def test_a_server_that_does_not_answer_in_time() -> None:
    released = threading.Event()

    def never(request: Request) -> Said:
        released.wait(20)
        return Said(answer("late"))

    with serving(never) as server:
        model = EndpointModel(server.url, timeout=0.3, retries=1)
        with pytest.raises(EndpointError, match=r"0.3 seconds.*timeout"):
            model.generate(PROMPT)
        released.set()


def test_a_connection_that_breaks_is_tried_again() -> None:
    cut = Said(b'{"choices"', headers={"Content-Length": "5000", "Connection": "close"})
    with serving(_scripted(cut, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"


# -- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>Login</html>", "something else than JSON"),
        (b"[1]", "without an answer"),
        ({}, "without an answer"),
        ({"error": {"message": "the provider lost it"}}, "without an answer.*lost it"),
        (
            {"choices": [{"message": {"reasoning": "hm"}, "finish_reason": "length"}]},
            "max_new_tokens",
        ),
    ],
)
def test_replies_without_an_answer_are_told(content: Any, told: str) -> None:
    with (
        serving(_scripted(Said(content))) as server,
        pytest.raises(EndpointError, match=told),
    ):
        EndpointModel(server.url).generate(PROMPT)


@pytest.mark.parametrize("usage", [None, {}])
def test_without_token_counts_an_answer_counts_all_the_same(usage: Any) -> None:
    with serving(_scripted(Said({**answer("yes"), "usage": usage}))) as server:
        generation = EndpointModel(server.url).generate(PROMPT)
    assert (generation.text, generation.usage.prompt_tokens) == ("yes", 0)


def test_the_advice_fits_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "This model's maximum context length is 512 tokens"
    with serving(_scripted(Said({"error": {"message": said}}, 400))) as server:
        with pytest.raises(EndpointError, match="fewer or shorter documents"):
            EndpointModel(server.url).generate(PROMPT)
        server.reply = _scripted(Said({"detail": "there is no chat template"}, 400))
        with pytest.raises(EndpointError, match="template='raw'"):
            EndpointModel(server.url).generate(PROMPT)
        server.reply = _scripted(Said({"error": {"message": "who are you"}}, 401))
        with pytest.raises(EndpointError, match=r"No key was sent.*api_key_env"):
            EndpointModel(server.url).generate(PROMPT)


def test_newer_names_of_the_limit_are_learnt() -> None:
    def newer(request: Request) -> Said:
        if "max_tokens" in request.body:
            message = "Unsupported parameter: use 'max_completion_tokens' instead."
            return Said({"error": {"message": message}}, 400)
        return Said(answer("there"))

    with serving(newer) as server:
        model = EndpointModel(server.url)
        assert [g.text for g in model.batch([PROMPT] * 3, max_batch_size=1)] == ["there"] * 3
        assert len(server.asked) == 4


# -- streams --------------------------------------------------------------------------------------


def test_a_streamed_answer_comes_in_pieces() -> None:
    with serving(_scripted(events("The ", "Loire", " é"))) as server:
        stream = EndpointModel(server.url).stream(PROMPT, max_new_tokens=9)
        assert list(stream) == ["The ", "Loire", " é"]
        assert stream.result.text == "The Loire é"
        assert stream.result.usage.completion_tokens == 3
        assert server.asked[0].body["stream"] is True


@pytest.mark.parametrize(
    "cut",
    [
        events("The ", finish=None, done=False),
        events("The ", finish=None),
        Said([b'data: {"choices": [{"delta": {"content": "The "}}]}\n\ndata: {"choi']),
    ],
)
def test_a_stream_that_is_cut_in_the_middle_is_no_answer(cut: Said) -> None:
    with serving(_scripted(cut)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert next(stream) == "The "
        with pytest.raises(EndpointError, match="middle of an answer, after 4 characters"):
            next(stream)


def test_an_error_within_a_stream_is_told() -> None:
    broken = events("The ", finish=None, done=False)
    broken.content.append(b'data: {"error": {"message": "engine died"}}\n\n')
    with serving(_scripted(broken)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        with pytest.raises(EndpointError, match="engine died"):
            list(stream)


def test_a_stream_is_tried_again_until_it_begins() -> None:
    failed = Said({"error": {"message": "busy"}}, 503)
    with serving(_scripted(failed, events("there"))) as server:
        assert "".join(EndpointModel(server.url).stream(PROMPT)) == "there"


def test_a_closed_stream_is_the_answer_until_then() -> None:
    with serving(_scripted(events(*("word " for _ in range(50))))) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        next(stream)
        stream.close()
        assert stream.result.finish_reason in ("cancelled", "stop")


# -- addresses and keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
        ("http://[::1]:11434/v1", "http://[::1]:11434/v1"),
    ],
)
def test_addresses(url: str, expected: str) -> None:
    assert checked_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://host/v1", "file:///etc/passwd", "http://", ""),
        *("http://user:hunter2@host/v1", "https://host/v1?api-key=hunter2", "http://h/v1#hunter2"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        EndpointModel(url)
    assert "hunter2" not in str(raised.value)


def _authorizations(server: Server) -> set[str | None]:
    return {request.headers.get("Authorization") for request in server.seen}


def test_the_key_of_the_usual_variable_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", "another-key-9876543210")
    with serving(saying("yes")) as server:
        EndpointModel(server.url).generate(PROMPT)
        assert _authorizations(server) == {f"Bearer {KEY}"}
        server.seen.clear()
        EndpointModel(server.url, api_key_env="OTHER_KEY").generate(PROMPT)
        assert _authorizations(server) == {"Bearer another-key-9876543210"}
        server.seen.clear()
        EndpointModel(server.url, api_key_env="").generate(PROMPT)
        assert _authorizations(server) == {None}


def test_the_usual_key_goes_to_no_other_machine_unencrypted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert api_key(None, may_send=False) is None
    assert api_key("OPENAI_API_KEY", may_send=False) == KEY  # named: the user says so
    assert api_key(None, may_send=True) == KEY


@pytest.mark.parametrize("variable", ["sk-pasted-0123456789", "gsk_pasted0123456789"])
def test_a_key_given_for_its_variable_is_not_repeated(variable: str) -> None:
    with pytest.raises(ConfigError) as raised:
        EndpointModel("http://localhost:1/v1", api_key_env=variable)
    assert "pasted" not in str(raised.value)


# -- what is sent ---------------------------------------------------------------------------------


def test_a_prompt_goes_out_as_the_unmodified_model_reads_it() -> None:
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url)
        model.generate(PROMPT, max_new_tokens=5, system="Be brief.", stop=["\n"])
        model.generate(PROMPT, max_new_tokens=5, template="raw")
        model.generate(PROMPT.marked, temperature=0.5, seed=3, top_p=0.9)
    chat, raw, sampled = (request.body for request in server.asked)
    text = "Read.\none\n\ntwo\n\nWhich?"
    assert chat == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": text},
        ],
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["\n"],
    }
    assert raw == {"model": "tiny", "prompt": text, "max_tokens": 5, "temperature": 0.0}
    assert sampled["messages"] == [{"role": "user", "content": text}]
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.5, 0.9, 3)


def test_more_fields_of_a_request() -> None:
    with serving(saying("yes")) as server:
        EndpointModel(
            server.url, extra_body={"temperature": None, "reasoning_effort": "low"}
        ).generate(PROMPT)
        assert "temperature" not in server.asked[0].body
        assert server.asked[0].body["reasoning_effort"] == "low"
        with pytest.raises(ConfigError, match="messages"):
            EndpointModel(server.url, extra_body={"messages": []})


@pytest.mark.parametrize(
    "options",
    [
        *({"num_beams": 2}, {"top_k": 5}, {"repetition_penalty": 1.1}, {"logprobs": True}),
        *({"template_options": {"a": 1}}, {"eos_token_id": 3}),
    ],
)
def test_options_that_the_interface_does_not_have(options: dict[str, Any]) -> None:
    with (
        serving(saying("yes")) as server,
        pytest.raises(UnsupportedGenerationError, match="no option of the OpenAI interface"),
    ):
        EndpointModel(server.url).generate(PROMPT, **options)


def test_the_model_has_to_be_named_where_there_are_several() -> None:
    with serving(saying("yes")) as server:
        assert EndpointModel(server.url).name == "tiny"
        server.models = Said({"data": [{"id": "small"}, {"id": "large"}]})
        with pytest.raises(ConfigError, match="It has 'large', 'small'"):
            EndpointModel(server.url)
        assert EndpointModel(server.url, "large").name == "large"
        server.models = Said({"error": "no such path"}, 404)  # not every server lists its models
        assert EndpointModel(server.url, "any").generate(PROMPT).text == "yes"
        with pytest.raises(ConfigError, match="does not list any"):
            EndpointModel(server.url)


def test_a_model_that_is_loaded_by_now_is_the_same() -> None:
    with serving(saying("there")) as server:
        identities = []
        for status in ({"value": "unloaded"}, {"value": "loaded", "args": ["--port", "34567"]}):
            entry = {"id": "tiny", "owned_by": "llamacpp", "status": status}
            server.models = Said({"data": [entry]})
            identities.append(EndpointModel(server.url).identity())
        assert identities[0] == identities[1]


def test_proxies_are_not_used_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(saying("yes")) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "yes"


# -- ends of answers ------------------------------------------------------------------------------

REFUSED = {"content": None, "refusal": "no"}
FILTERED = Said({"error": {"message": "The prompt was filtered", "code": "content_filter"}}, 400)


def _stream(*chunks: dict[str, Any]) -> Said:
    return Said([b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks])


@pytest.mark.parametrize(
    ("said", "text", "reason"),
    [
        (Said(answer("The Loi", finish_reason="content_filter")), "The Loi", "content_filter"),
        (Said(answer("", message=REFUSED)), "", "content_filter"),
        (FILTERED, "", "content_filter"),
        (Said(answer("", message={"content": None})), "", "stop"),
        (Said(answer("Loire", finish_reason="length")), "Loire", "length"),
        (Said(answer("Loire", finish_reason="eos")), "Loire", "stop"),
        (
            Said(
                answer(
                    "", message={"content": [{"type": "thinking"}, {"type": "text", "text": "L"}]}
                )
            ),
            "L",
            "stop",
        ),
    ],
    ids=str,
)
def test_ends_of_answers(said: Said, text: str, reason: str) -> None:
    with serving(_scripted(said)) as server:
        generation = EndpointModel(server.url).generate(PROMPT)
    assert (generation.text, generation.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (events("The ", "Loi", finish="content_filter"), "The Loi"),
        (_stream({"choices": [{"delta": {"refusal": "no"}}]}), ""),
        (FILTERED, ""),
        (
            _stream(
                {"choices": [{"delta": {"content": "The"}}]},
                {"error": {"message": "filtered", "code": "content_filter"}},
            ),
            "The",
        ),
    ],
    ids=["cut", "refusal", "prompt", "error"],
)
def test_streams_that_a_filter_ended_are_told(said: Said, text: str) -> None:
    with serving(_scripted(said)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert "".join(stream) == text
    assert (stream.result.text, stream.result.finish_reason) == (text, "content_filter")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_the_server_cuts_is_warned_of(streamed: bool) -> None:
    """Ollama cuts prompts to its context length without a word, and counts what is left."""
    prompt = ContextPrompt("Read.\n", ["Tours lies on the Loire. " * 4], "Which?")

    def ask(tokens: int) -> str:
        usage = {"prompt_tokens": tokens, "completion_tokens": 1}
        said = Said({**answer("Tours"), "usage": usage})
        if streamed:
            said = _stream({"choices": [{"delta": {"content": "Tours"}, "finish_reason": "stop"}]})
            said.content.insert(0, f"data: {json.dumps({'usage': usage})}\n\n".encode())
        with serving(_scripted(said)) as server:
            model = EndpointModel(server.url)
            generation = model.stream(prompt).result if streamed else model.generate(prompt)
        return generation.text

    words = len(prompt.text.split())
    assert ask(words) == ask(0) == "Tours"  # a server that counts nothing
    with pytest.warns(EndpointWarning, match=rf"read {words - 1} tokens of a prompt of {words}"):
        assert ask(words - 1) == "Tours"


@pytest.mark.parametrize(
    "text",
    [
        *("<|im_end|>", "a<|eot_id|>", "<｜User｜>", "[/INST]", "[TOOL_CALLS]"),
        *("<end_of_turn>\n<start_of_turn>system", "<turn|>\n<|turn>system", "<tool_response|>"),
    ],
)
def test_control_tokens_that_the_server_would_read_are_warned_of(text: str) -> None:
    with serving(saying("ok")) as server:
        model = EndpointModel(server.url)
        with pytest.warns(EndpointWarning, match="read that as a control token, in documents"):
            model.generate(ContextPrompt("", ["Tours", text], "?"))
        model.generate(ContextPrompt("", ["a < b | c > d, <|>, [INSTALL], <s>"], "?"))
        server.models = Said(
            {"data": [{"id": "m", "owned_by": "rag-middle", "rag_middle": {"methods": ["none"]}}]}
        )
        ours = EndpointModel(server.url, send_documents="text")
        ours.generate(ContextPrompt("", [text], "?"))
