"""What servers, proxies and networks do to requests, and what is said of it."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_middle.documents import ContextPrompt
from rag_middle.endpoint import EndpointModel, EndpointWarning, client
from rag_middle.endpoint.address import Address, api_key
from rag_middle.errors import (
    EndpointConfigError,
    EndpointError,
    EndpointRefusedError,
    EndpointReplyError,
    EndpointUnreachableError,
    UnsupportedGenerationError,
)
from rag_middle.evaluation import Measurement, run, write_evaluation
from tests.endpoint.server import Reply, Request, Said, Server, answer, events, saying, serving
from tests.reader.questions import InventedDocuments

KEY = "sk-secret-0123456789abcdef"
_FAILED = {"code": 502, "message": "the provider lost it"}
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
        with pytest.raises(EndpointRefusedError, match=r"500.*out of memory.*3 times") as raised:
            model.generate(PROMPT)
        assert raised.value.status == 500
        assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_refusals_are_not_tried_again(status: int) -> None:
    with serving(_scripted(Said({"error": {"message": "no"}}, status))) as server:
        model = EndpointModel(server.url)
        with pytest.raises(EndpointRefusedError, match=f"status {status}.*'no'"):
            model.generate(PROMPT)
        assert len(server.asked) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_the_pause_that_a_server_asks_for_is_kept_by_all_requests(form: str) -> None:
    # A date has whole seconds: up to one of two is gone already.
    value = "1" if form == "seconds" else formatdate(time.time() + 3, usegmt=True)
    busy = Said({"error": {"message": "slow down"}}, 429, {"Retry-After": value})
    times: list[float] = []

    def reply(request: Request) -> Said:
        times.append(time.monotonic())
        return busy if len(times) == 1 else Said(answer("there"))

    with serving(reply) as server:
        EndpointModel(server.url).batch([PROMPT] * 4, max_batch_size=1)
    assert times[1] - times[0] > 0.95


def test_a_pause_of_hours_is_not_waited_for() -> None:
    busy = Said({"error": {"message": "daily limit"}}, 429, {"Retry-After": "7200"})
    with (
        serving(_scripted(busy)) as server,
        pytest.raises(EndpointRefusedError, match=r"daily limit.*7,200 seconds.*again later"),
    ):
        EndpointModel(server.url).generate(PROMPT)
    assert len(server.asked) == 1


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(EndpointUnreachableError, match=r"no connection.*Is the server running"):
        EndpointModel(f"http://127.0.0.1:{port}", retries=50)
    assert time.monotonic() - started < 5  # a wrong address is not tried again and again


def test_a_server_that_does_not_answer_in_time() -> None:
    released = threading.Event()

    def never(request: Request) -> Said:
        released.wait(20)
        return Said(answer("late"))

    with serving(never) as server:
        model = EndpointModel(server.url, timeout=0.3, retries=1)
        with pytest.raises(EndpointUnreachableError, match=r"0.3 seconds.*timeout.*2 times"):
            model.generate(PROMPT)
        released.set()


def test_a_reply_that_trickles_in_is_not_waited_for() -> None:
    # Each piece comes in time, all of them do not.
    with serving(_scripted(Said([b" "] * 1000, pause=0.05))) as server:
        model = EndpointModel(server.url, timeout=0.4, retries=0)
        with pytest.raises(EndpointUnreachableError, match="did not answer within"):
            model.generate(PROMPT)


@pytest.mark.parametrize(
    "said",
    [
        Said([b": still here\n\n"] * 1000, pause=0.05),  # server-sent events, none with data
        Said([b" "] * 1000, status=500, pause=0.05),
    ],
    ids=["stream", "error"],
)
def test_neither_is_a_stream_or_an_error_that_trickles_in(said: Said) -> None:
    with serving(_scripted(said)) as server:
        model = EndpointModel(server.url, timeout=0.4, retries=0)
        started = time.monotonic()
        late = pytest.raises(EndpointUnreachableError, match="did not answer within")
        with model.stream(PROMPT) as pieces, late:
            list(pieces)
        assert time.monotonic() - started < 3


@contextmanager
def _dripping(said: bytes, drop: bytes) -> Iterator[str]:
    """The address of a server that answers prompts with `said`, and then drop by drop."""
    models = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"data": [{"id": "tiny"}]}'
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if connection.recv(65536).startswith(b"GET"):
                return connection.sendall(models)
            connection.sendall(said)
            while not ended.wait(0.05):
                connection.sendall(drop)

    def listen(listener: socket.socket) -> None:
        with suppress(OSError):
            while not ended.is_set():
                connection, _ = listener.accept()
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = threading.Thread(target=listen, args=(listener,))
        listening.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield url
        finally:
            ended.set()
            with suppress(OSError), socket.create_connection(listener.getsockname()):
                listening.join()


_CHUNKED = b"HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("way", ["generate", "stream"])
@pytest.mark.parametrize(
    ("said", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (_CHUNKED % b"200 OK" + b"5;a=", b"x"),
        (_CHUNKED % b"200 OK" + b"2\r\n: \r\n0\r\nX-Slow: ", b"x"),
        (_CHUNKED % b"400 No" + b"5;a=", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", b""),
    ],
    ids=["header", "extension", "trailer", "extension of an error", "no length", "nothing more"],
)
def test_neither_are_bytes_without_content(said: bytes, drop: bytes, way: str) -> None:
    late = pytest.raises(EndpointUnreachableError, match="did not answer within")
    with _dripping(said, drop) as url:
        model = EndpointModel(url, timeout=0.4, retries=0)
        started = time.monotonic()
        with late:
            if way == "generate":
                model.generate(PROMPT)
            else:
                with model.stream(PROMPT) as pieces:
                    list(pieces)
        assert time.monotonic() - started < 3


def _end_of_threads(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("drop", [b"x", b"HTTP/1.1 103 Early Hints\r\n\r\n"], ids=["header", "1xx"])
def test_no_thread_goes_on_reading_headers_after_the_deadline(drop: bytes) -> None:
    said = b"HTTP/1.1 200 OK\r\nX-Slow: " if drop == b"x" else drop
    with _dripping(said, drop) as url:
        model = EndpointModel(url, timeout=0.2, retries=1)
        with pytest.raises(EndpointUnreachableError, match="did not answer within"):
            model.generate(PROMPT)
        _end_of_threads("rag-middle-send")


def test_no_two_requests_share_a_connection() -> None:
    # Forked processes would, and read each other's answers.
    with serving(lambda request: Said(answer("there"))) as server:
        model = EndpointModel(server.url)
        for _ in range(3):
            assert model.generate(PROMPT).text == "there"
        assert server.connections == 4  # one for the list of models


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n\r\n: waiting\n\n"])
def test_a_stream_is_closed_while_the_server_is_silent(said: bytes) -> None:
    with _dripping(said, b"") as url:
        stream = EndpointModel(url, timeout=60).stream(PROMPT)
        reading = threading.Thread(target=lambda: list(stream))
        reading.start()
        time.sleep(0.3)
        started = time.monotonic()
        stream.close()
        reading.join()
        assert time.monotonic() - started < 5
        assert (stream.result.text, stream.result.finish_reason) == ("", "cancelled")
        _end_of_threads("rag-middle-send")


def test_a_stream_that_is_closed_in_a_pause_is_not_asked_for_again() -> None:
    refused = Said({"error": "busy"}, status=429, headers={"Retry-After": "30"})
    with serving(lambda request: refused) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        reading = threading.Thread(target=lambda: list(stream))
        reading.start()
        while not server.asked:
            time.sleep(0.01)
        time.sleep(0.2)
        stream.close()
        reading.join()
        assert stream.result.finish_reason == "cancelled"
        assert len(server.asked) == 1


def test_a_line_without_an_end_is_not_read_anew_with_each_piece() -> None:
    long = b'data: {"a": "' + b"x" * 2**21 + b'"}\n'
    started = time.process_time()
    pieces = (long[at : at + 512] for at in range(0, len(long), 512))
    assert [len(data) for data in client._event_data(pieces)] == [len(long) - 7]
    assert time.process_time() - started < 5  # 40 if it were


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ALL_PROXY", "ftp://user:geheim@proxy", "ValueError"),
        ("HTTPS_PROXY", "http://user:gehe/im@proxy", "InvalidURL"),
        ("SSL_CERT_FILE", "/nowhere.pem", "No such file"),
    ],
)
def test_proxies_and_certificates_of_the_environment_that_cannot_be_used(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(EndpointConfigError, match=f"{told}.*{variable}") as raised:
        EndpointModel("https://models.invalid/v1")
    assert "gehe" not in str(raised.value)


def test_any_time_can_be_allowed() -> None:
    with serving(lambda request: Said(answer("there"))) as server:
        assert EndpointModel(server.url, timeout=1e300).generate(PROMPT).text == "there"


def test_no_thread_waits_for_the_deadline_of_an_answer_that_came() -> None:
    with serving(lambda request: Said(answer("there"))) as server:
        EndpointModel(server.url, timeout=60).generate(PROMPT)
        _end_of_threads("rag-middle-send")


def test_a_stream_may_begin_with_a_byte_order_mark() -> None:
    pieces = events("a", "b").content
    with serving(_scripted(Said([b"\xef\xbb\xbf" + pieces[0], *pieces[1:]]))) as server:
        assert EndpointModel(server.url).stream(PROMPT).result.text == "ab"


def test_a_connection_that_breaks_is_tried_again() -> None:
    cut = Said(b'{"choices"', headers={"Content-Length": "5000", "Connection": "close"})
    with serving(_scripted(cut, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"


# -- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>Login</html>", "Login"),
        (b"", "something else than JSON"),
        (b'{"choices": [', "something else than JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"\\ud800"', "no JSON object"),
        (b"[1]", "no JSON object"),
        ({}, "without an answer"),
        ({"x" * 10_000: 1}, "without an answer"),
        ({"choices": []}, "without an answer"),
        ({"choices": [7]}, "without an answer"),
        ({"choices": [{"message": {"content": [1]}}]}, "text is of type list"),
        ({"choices": [{"message": {"content": None}}]}, "text is missing"),
        ({"choices": [{"message": "x"}]}, "text is missing"),
        (
            {"choices": [{"message": {"reasoning": "hm"}, "finish_reason": "length"}]},
            "max_new_tokens",
        ),
        (b'{"choices": "' + b"x" * 33 * 2**20 + b'"}', "more than 32 MiB"),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, str) else None,
)
def test_damaged_replies_are_one_typed_error_each(content: Any, told: str) -> None:
    with serving(_scripted(Said(content))) as server:
        with pytest.raises(EndpointReplyError, match=told) as raised:
            EndpointModel(server.url).generate(PROMPT)
        assert len(str(raised.value)) < 1000
        assert len(server.asked) == 1


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": -1}, {"prompt_tokens": "9"}])
def test_without_token_counts_an_answer_counts_all_the_same(usage: Any) -> None:
    with serving(_scripted(Said({**answer("yes"), "usage": usage}))) as server:
        generation = EndpointModel(server.url).generate(PROMPT)
    assert (generation.text, generation.usage.prompt_tokens) == ("yes", 0)


def test_no_redirect_is_followed() -> None:
    with serving(saying("stolen")) as other:
        away = Said(b"", 307, {"Location": f"{other.url}/chat/completions?token=1"})
        with serving(_scripted(away)) as server:
            with pytest.raises(EndpointConfigError, match=r"sends requests on.*127.0.0.1") as told:
                EndpointModel(server.url).generate(PROMPT)
            assert "token=1" not in str(told.value)
        assert not other.seen


def test_the_advice_fits_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "This model's maximum context length is 512 tokens"
    with serving(_scripted(Said({"error": {"message": said}}, 400))) as server:
        with pytest.raises(EndpointRefusedError, match="fewer or shorter documents"):
            EndpointModel(server.url).generate(PROMPT)
        server.reply = _scripted(Said({"detail": "there is no chat template"}, 400))
        with pytest.raises(EndpointRefusedError, match="template='raw'"):
            EndpointModel(server.url).generate(PROMPT)
        server.reply = _scripted(Said({"error": {"message": "who are you"}}, 401))
        with pytest.raises(EndpointRefusedError, match=r"No key was sent.*api_key_env"):
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
        with pytest.raises(EndpointReplyError, match="middle of an answer, after 4 characters"):
            next(stream)


def test_an_error_within_a_stream_is_told() -> None:
    broken = events("The ", finish=None, done=False)
    broken.content.append(b'data: {"error": {"message": "engine died"}}\n\n')
    with serving(_scripted(broken)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        with pytest.raises(EndpointRefusedError, match="engine died"):
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
    assert Address.of(url).url == expected


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8000", "ftp://host/v1", "file:///etc/passwd", "http://", "", "unix:///x"),
        *("http://user:hunter2@host/v1", "https://host/v1?api-key=hunter2", "http://h/v1#hunter2"),
        *("http://host:port/v1", "http://host/v1/chat/completions", "http://a b/v1", "http://h\n"),
        *("http://\uff4cocalhost/v1", "http://xn--/v1"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(EndpointConfigError) as raised:
        EndpointModel(url)
    assert "hunter2" not in str(raised.value)
    assert raised.value.parameter in ("endpoint", None)


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
    there = Address.of("http://example.org/v1")
    assert api_key(None, there) is None
    assert api_key("OPENAI_API_KEY", there) == KEY  # named: the user says so
    assert api_key(None, Address.of("https://example.org/v1")) == KEY


@pytest.mark.parametrize("variable", ["sk-pasted-0123456789", "gsk_pasted0123456789"])
def test_a_key_given_for_its_variable_is_not_repeated(variable: str) -> None:
    with pytest.raises(EndpointConfigError) as raised:
        EndpointModel("http://localhost:1/v1", api_key_env=variable)
    assert "pasted" not in str(raised.value)


@pytest.mark.parametrize("key", ["two\nlines", "spa ce", "ключ"])
def test_what_no_header_takes_is_no_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(EndpointConfigError) as raised:
        EndpointModel("http://localhost:1/v1")
    assert key not in str(raised.value)


def _echo(request: Request) -> Said:
    """Repeats the headers wherever a reply has text."""
    said = request.headers.get("Authorization", "")
    return Said({**answer(f"you sent {said}"), "rag_middle": {said: said}})


def test_the_key_reaches_no_file_and_no_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(0)
    with serving(_echo) as server:
        server.models = Said({"data": [{"id": "tiny", "owned_by": f"Bearer {KEY}"}]})
        model = EndpointModel(server.url)
        measurement = Measurement(limit=2, positions=2)
        task = InventedDocuments(documents=2)
        results = run(model, task, (), measurement, records=tmp_path / "records.jsonl")
        write_evaluation(results, tmp_path)
        assert _authorizations(server) == {f"Bearer {KEY}"}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert b"you sent Bearer ***" in (tmp_path / "records.jsonl").read_bytes()
    assert KEY not in caplog.text
    assert KEY not in repr(vars(model))


@pytest.mark.parametrize(
    "reply",
    [
        Said({"error": {"message": f"Incorrect key {KEY}", "code": KEY}}, 401),
        Said({"error": f"key {KEY}"}, 500),
        Said(f"<p>{KEY}</p>".encode()),
        Said(f"[{KEY!r}]".replace("'", '"').encode()),
        Said({KEY: KEY}),
        Said(b"", 302, {"Location": f"http://127.0.0.1/{KEY}"}),
        Said(b"", 302, {"Location": f"http://127.0.0.1/{'x' * 270}{KEY}"}),
        Said(b"", 200, {f"{KEY}\x00": "no header"}),
        Said([f'data: {{"error": {{"message": "{KEY}"}}}}\n\n'.encode()]),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_no_error_repeats_a_key_that_the_server_repeats(
    reply: Said, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(_scripted(reply)) as server:
        model = EndpointModel(server.url, retries=0)
        with pytest.raises(EndpointError) as raised:
            _ = model.stream(PROMPT).result if streamed else model.generate(PROMPT)
    error: BaseException | None = raised.value
    while error is not None:  # causes are shown in tracebacks
        assert KEY not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("depth", [300, 600, 900, 990])
def test_a_deeply_nested_reply_is_an_error_also_where_a_key_is_looked_for(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    nested = Said(b'{"a":' * depth + b"1" + b"}" * depth)
    with serving(_scripted(nested)) as server, pytest.raises(EndpointReplyError):
        EndpointModel(server.url).generate(PROMPT)


@pytest.mark.parametrize(
    "reply",
    [
        Said({"hunter2": 1}),
        Said({"choices": [{"message": {"content": {"k": "hunter2"}}}]}),
        Said({"error": "bad key hunter2"}),
        Said({"choices": [{"finish_reason": "error", "error": "hunter2"}]}),
        Said({"error": {"message": "key hunter2"}}, 401),
    ],
)
def test_no_error_repeats_a_short_key(reply: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    with serving(_scripted(reply)) as server, pytest.raises(EndpointError) as raised:
        EndpointModel(server.url, retries=0).generate(PROMPT)
    assert "hunter2" not in str(raised.value)
    assert server.url in str(raised.value)


def test_a_key_that_is_a_word_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")  # as vLLM's examples have it
    with serving(saying("The glass is EMPTY.")) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "The glass is EMPTY."


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
        with pytest.raises(EndpointConfigError, match="messages"):
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
        with pytest.raises(EndpointConfigError, match="It has 'large', 'small'"):
            EndpointModel(server.url)
        assert EndpointModel(server.url, "large").name == "large"
        server.models = Said({"error": "no such path"}, 404)  # not every server lists its models
        assert EndpointModel(server.url, "any").generate(PROMPT).text == "yes"
        with pytest.raises(EndpointConfigError, match="does not list any"):
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


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br"])
def test_packed_replies_are_refused_before_they_are_unpacked(encoding: str) -> None:
    packed = gzip.compress(gzip.compress(b" " * 2**24))
    said = Said(packed, headers={"Content-Encoding": encoding})
    with serving(_scripted(said)) as server:
        for generate in (EndpointModel(server.url).generate, _streamed(server.url)):
            with pytest.raises(EndpointReplyError, match="packed"):
                generate(PROMPT)


def _streamed(url: str) -> Callable[[ContextPrompt], str]:
    return lambda prompt: "".join(EndpointModel(url).stream(prompt))


@pytest.mark.parametrize("at", [0, 1, 8, len(KEY) - 1])
def test_a_key_that_is_spread_over_events_is_struck_out(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    pieces = ["It is ", KEY[:at], KEY[at:], ", sk-s", "o sk-"]
    with serving(_scripted(events(*filter(None, pieces)))) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert "".join(stream) == "It is ***, sk-so sk-"
        assert stream.result.text == "It is ***, sk-so sk-"


SLASHED = "sk-secret/0123+456789abcdef"
ESCAPED = SLASHED.replace("/", "\\/").encode()


@pytest.mark.parametrize(
    "said",
    [
        Said({}, headers={"Content-Encoding": SLASHED}),
        Said(b'["%s"]' % ESCAPED),
        Said("".join(f"\\u{ord(letter):04X}" for letter in SLASHED).encode()),
        Said(b'data: {"error": {"message": "%s"}}\n\n' % ESCAPED),
        Said(b'{"error": "%s' % ESCAPED, 400),
    ],
    ids=["header", "slash", "numbers", "event", "cut"],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_key_in_headers_or_escapes_is_struck_out(
    said: Said, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SLASHED)
    with serving(_scripted(said)) as server:
        model = EndpointModel(server.url, retries=0)
        with pytest.raises(EndpointError) as caught:
            _ = model.stream(PROMPT).result if streamed else model.generate(PROMPT)
    message = str(caught.value)
    assert "0123" not in message
    assert "u0030" not in message.lower()


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        ({"content": [{"type": "image_url"}]}, "text is of type list"),
        ({"content": 5}, "text is of type int"),
        ({"reasoning_content": "The documents say"}, "spent all of its tokens on thinking"),
        ({"reasoning": "The documents say", "content": ""}, "spent all of its tokens on thinking"),
    ],
)
def test_a_stream_without_an_answer_is_none(delta: dict[str, object], message: str) -> None:
    chunks = [{"choices": [{"delta": delta}]}, {"choices": [{"finish_reason": "length"}]}]
    said = Said([b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks])
    with serving(_scripted(said)) as server, pytest.raises(EndpointReplyError, match=message):
        _ = EndpointModel(server.url).stream(PROMPT).result


def test_a_pause_until_no_date_is_none() -> None:
    until = "Mon, 01 Jan 2020 00:00:00 +" + "9" * 20
    busy = Said({"error": {"message": "busy"}}, 429, {"Retry-After": until})
    with serving(_scripted(busy, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"


def test_a_pause_without_end_is_said_in_a_number() -> None:
    busy = Said({"error": {"message": "busy"}}, 429, {"Retry-After": "inf"})
    with (
        serving(_scripted(busy)) as server,
        pytest.raises(EndpointRefusedError, match="1,000,000,000 seconds"),
    ):
        EndpointModel(server.url).generate(PROMPT)


# -- ends of answers ------------------------------------------------------------------------------

REFUSED = {"content": None, "refusal": "no"}
AZURE = Said({"error": {"message": "The prompt was filtered", "code": "content_filter"}}, 400)

_FLAGGED = "Your prompt was flagged as potentially violating our usage policy."
OPENAI = Said({"error": {"message": _FLAGGED, "code": "invalid_prompt"}}, 400)


@pytest.mark.parametrize(
    ("said", "text", "reason"),
    [
        (Said(answer("", finish_reason="content_filter")), "", "content_filter"),
        (Said(answer("The Loi", finish_reason="content_filter")), "The Loi", "content_filter"),
        (Said(answer("", finish_reason="content_filter: SAFETY")), "", "content_filter"),
        (Said(answer("", message={"content": None}, finish_reason="sensitive")), "", ...),
        (Said(answer("", message=REFUSED)), "", "content_filter"),
        (AZURE, "", "content_filter"),
        (OPENAI, "", "content_filter"),
        (Said(answer("", message={"content": None})), "", "stop"),
        (Said(answer("Loire", finish_reason="model_length")), "Loire", "length"),
        (Said(answer("Loire", finish_reason="eos")), "Loire", "stop"),
        (Said(answer("Loire", finish_reason=["odd"])), "Loire", "stop"),
    ],
    ids=str,
)
def test_answers_that_a_filter_withheld_are_told(said: Said, text: str, reason: Any) -> None:
    with serving(_scripted(said)) as server:
        generation = EndpointModel(server.url).generate(PROMPT)
    expected = "content_filter" if reason is ... else reason
    assert (generation.text, generation.finish_reason) == (text, expected)


def _stream(*chunks: dict[str, Any]) -> Said:
    return Said([b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks])


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (events("The ", "Loi", finish="content_filter"), "The Loi"),
        (events(finish="content_filter"), ""),
        (
            _stream(
                {"choices": [{"delta": {"refusal": "no"}}]},
                {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            ),
            "",
        ),
        (AZURE, ""),
        (
            _stream(
                {"choices": [{"delta": {"content": "The"}}]},
                {"error": {"message": "filtered", "code": "content_filter"}},
            ),
            "The",
        ),
    ],
    ids=["cut", "whole", "refusal", "prompt", "error"],
)
def test_streams_that_a_filter_ended_are_told(said: Said, text: str) -> None:
    with serving(_scripted(said)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert "".join(stream) == text
    assert (stream.result.text, stream.result.finish_reason) == (text, "content_filter")


_CALL = {"content": None, "tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}
_UNSEEN = {"completion_tokens_details": {"reasoning_tokens": 9}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answer("", message=_CALL, finish_reason="tool_calls"), "calls a tool"),
        (answer("", message=_CALL), "calls a tool"),
        (answer("Let me see.", finish_reason="tool_calls"), "calls a tool"),
        (answer("The Loi", finish_reason="error"), "broke an answer off"),
        (answer("The Loi", finish_reason="abort"), "broke an answer off"),
        (answer("The Loi", finish_reason=None, error=_FAILED), "broke an answer off.*lost it"),
        ({**answer("", finish_reason="length"), "usage": _UNSEEN}, "spent all of its tokens"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_ends_that_leave_no_answer_are_errors(reply: Any, told: str, streamed: bool) -> None:
    said = Said(reply)
    if streamed:
        [choice] = reply["choices"]
        delta = {**choice["message"], "content": choice["message"]["content"] or ""}
        chunk = {"choices": [{**choice, "delta": delta}]}
        said = _stream({**chunk, "usage": reply["usage"]})
    with serving(_scripted(said)) as server:
        model = EndpointModel(server.url)
        with pytest.raises(EndpointReplyError, match=told):
            _ = model.stream(PROMPT).result if streamed else model.generate(PROMPT)


@pytest.mark.parametrize(
    "reply",
    [
        answer("The Loi", finish_reason="error"),
        answer("The Loi", finish_reason="abort"),
        answer("The Loi", error=_FAILED),  # OpenRouter
        {"error": _FAILED},
    ],
)
def test_an_answer_that_the_server_broke_off_is_asked_for_again(reply: dict[str, Any]) -> None:
    failed = Said(reply)
    with serving(_scripted(failed, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"
    with serving(_scripted(failed)) as server:
        with pytest.raises(EndpointReplyError, match=r"broke an answer off.*2 times in a row"):
            EndpointModel(server.url, retries=1).generate(PROMPT)
        assert len(server.asked) == 2


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 10_000])
def test_events_are_read_however_their_lines_end(end: bytes, size: int) -> None:
    chunks: list[Any] = [{"choices": [{"delta": {"content": text}}]} for text in ("The ", "Loire")]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    lines = [b": a comment", b"event: message"]
    for chunk in chunks:  # spread over several lines
        lines += [b"data: " + line for line in json.dumps(chunk, indent=1).encode().splitlines()]
        lines.append(b"")
    body = b"".join(line + end for line in lines)
    said = Said([body[at : at + size] for at in range(0, len(body), size)])
    with serving(_scripted(said)) as server:
        assert EndpointModel(server.url).stream(PROMPT).result.text == "The Loire"


def test_halves_of_characters_are_replaced() -> None:
    said = Said(answer("half \ud83d"))
    stream = events("half \ud83d")
    with serving(_scripted(said, stream)) as server:
        model = EndpointModel(server.url)
        assert model.generate(PROMPT).text == "half \ufffd"
        assert model.stream(PROMPT).result.text == "half \ufffd"


def test_of_several_answers_that_of_index_0_is_read() -> None:
    choices = [{**answer(text)["choices"][0], "index": 1 - n} for n, text in enumerate("ba")]
    deltas = [{"delta": {"content": text}, "index": 1 - n} for n, text in enumerate("ba")]
    ended = {"delta": {}, "finish_reason": "stop", "index": 0}
    stream = _stream({"choices": deltas[:1]}, {"choices": deltas}, {"choices": [ended]})
    with serving(_scripted(Said({"choices": choices}), stream)) as server:
        model = EndpointModel(server.url)
        assert model.generate(PROMPT).text == "a"
        assert model.stream(PROMPT).result.text == "a"


# -- a key that is spread over fields -------------------------------------------------------------


def _cut(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(KEY)), min_size=1, max_size=4),
    escapes=st.sets(st.integers(0, len(KEY) - 1)),
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_key_spread_over_parts_of_an_answer_is_struck_out(
    streamed: bool, cuts: list[int], escapes: set[int]
) -> None:
    written = "".join(_escaped(c) if at in escapes else c for at, c in enumerate(KEY))
    pieces = _cut(written, [cut * len(written) // len(KEY) for cut in cuts])
    content = [{"type": "text", "text": f"{piece}"} for piece in pieces]
    whole = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    said = events(*filter(None, pieces)) if streamed else Said(whole)
    with pytest.MonkeyPatch.context() as patch, serving(_scripted(said)) as server:
        patch.setenv("OPENAI_API_KEY", KEY)
        model = EndpointModel(server.url)
        text = "".join(model.stream(PROMPT)) if streamed else model.generate(PROMPT).text
    assert text == "***"


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, len(KEY)), min_size=1, max_size=3))
@pytest.mark.parametrize(
    "reply",
    [
        lambda pieces: Said({"error": {"message": [{"text": piece} for piece in pieces]}}, 400),
        lambda pieces: Said({"error": dict.fromkeys(pieces, 1)}, 503),
        lambda pieces: Said(dict.fromkeys(pieces, 1)),
        lambda pieces: Said({"choices": [{"message": {"content": {p: p for p in pieces}}}]}),
        lambda pieces: Said({"choices": [{"delta": {"content": [{p: 1} for p in pieces]}}]}),
    ],
    ids=["message", "error", "fields", "content", "parts"],
)
def test_no_error_says_a_key_that_is_spread_over_fields(
    reply: Callable[[list[str]], Said], cuts: list[int]
) -> None:
    pieces = [piece for piece in _cut(KEY, cuts) if piece]
    with pytest.MonkeyPatch.context() as patch, serving(_scripted(reply(pieces))) as server:
        patch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(EndpointError) as raised:
            EndpointModel(server.url, retries=0).generate(PROMPT)
    message = f"{raised.value} {raised.value.parts} {raised.value.args}"
    said = {at + i for at in range(len(KEY) - 3) if KEY[at : at + 4] in message for i in range(4)}
    assert len(said) < 2 / 3 * len(KEY)


def test_a_key_spread_over_what_is_said_of_models_is_struck_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(saying("Loire")) as server:
        server.models = Said({"data": [{"id": "tiny", "root": KEY[:9], "parent": KEY[9:]}]})
        facts = EndpointModel(server.url).identity()["server"]
        server.models = Said({"data": [{"id": KEY[:9]}, {"id": KEY[9:]}]})
        with pytest.raises(EndpointConfigError) as raised:
            EndpointModel(server.url)
    assert facts == {"id": "tiny", "root": "***", "parent": "***"}
    assert KEY[9:] not in str(raised.value)


def test_a_message_that_names_a_part_of_the_key_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "qwen2.5-7b-0123456789")
    refusal = Said({"error": {"message": "no model qwen2.5-7b here"}}, 404)
    told = pytest.raises(EndpointRefusedError, match=r"no model qwen2\.5-7b here")
    with serving(_scripted(refusal)) as server, told:
        EndpointModel(server.url).generate(PROMPT)


@pytest.mark.parametrize("streamed", [False, True])
def test_parts_of_an_answer_that_are_no_text_are_left_out(streamed: bool) -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "reasoning", "text": "Hm."},
        {"type": "text", "text": "Loi"},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "re"},
    ]
    message = "delta" if streamed else "message"
    chunks = [[part] for part in parts if part["type"] != "reference"] if streamed else [parts]
    replies = [{"choices": [{message: {"content": chunk}}]} for chunk in chunks]
    replies[-1]["choices"][0]["finish_reason"] = "stop"  # type: ignore[assignment]
    lines = [b"data: %s\n\n" % json.dumps(reply).encode() for reply in replies]
    with serving(_scripted(Said(lines if streamed else replies[0]))) as server:
        model = EndpointModel(server.url)
        text = "".join(model.stream(PROMPT)) if streamed else model.generate(PROMPT).text
    assert text == "Loire"


@pytest.mark.parametrize(
    ("part", "finish", "error"),
    [
        ({"type": "thinking", "thinking": "Hm."}, "length", "tokens on thinking"),
        ({"type": "image", "url": "x"}, "stop", "is of type list"),
        ({"type": "refusal", "refusal": "No."}, "stop", None),
    ],
)
def test_an_answer_without_a_part_of_text(
    part: dict[str, Any], finish: str, error: str | None
) -> None:
    reply = {"choices": [{"message": {"content": [part]}, "finish_reason": finish}]}
    with serving(_scripted(Said(reply))) as server:
        model = EndpointModel(server.url)
        if error is None:
            assert model.generate(PROMPT).finish_reason == "content_filter"
        else:
            with pytest.raises(EndpointReplyError, match=error):
                model.generate(PROMPT)


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
