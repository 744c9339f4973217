"""Many requests at once, clients that leave or wait, and the end."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import torch
from starlette.requests import ClientDisconnect

from rag_middle import ContextPrompt
from rag_middle.generation import RagMiddleModel
from rag_middle.serving import ServerSettings
from rag_middle.serving.batching import AnswerJob, BatchQueue
from tests.serving.conftest import METHODS, Serve, Served

pytestmark = pytest.mark.thorough


def queue_of(server: Served) -> BatchQueue:
    queue: BatchQueue = server.server.config.app.state.queue  # type: ignore[union-attr]
    return queue


def wait_until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def at_once(count: int, ask: Any) -> list[Any]:
    """Results, or what was raised."""

    def run(index: int) -> Any:
        try:
            return ask(index)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_requests_that_wait_share_batches(
    serve: Serve, tiny_model: RagMiddleModel, slow: list[float]
) -> None:
    server = serve(tiny_model, batch_wait=0.2)
    questions = [f"Which river? {'fox ' * index}" for index in range(8)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.chat, "Which river?", max_tokens=30)
        wait_until(lambda: slow)
        answers = at_once(8, lambda i: server.chat(questions[i], max_tokens=3, stream=False))
        first.result()
    passes = len(slow) - 30
    texts = [answer.choices[0].message.content for answer in answers]
    expected = [
        tiny_model.generate(ContextPrompt(suffix=question), max_new_tokens=3).text
        for question in questions
    ]
    assert texts == expected
    assert passes <= 8 + 4 * 2  # prompts are read one by one; four batches at most


def test_nobody_waits_for_more_clients_than_there_are(
    serve: Serve, tiny_model: RagMiddleModel, slow: list[float]
) -> None:
    alone = serve(tiny_model, batch_wait=20)
    started = time.monotonic()
    alone.chat("Which river?", max_tokens=1)
    assert time.monotonic() - started < 20
    slow.clear()
    server = serve(tiny_model, batch_wait=0.5)

    def ask_in_turn(_: int) -> None:
        for _ in range(10):
            server.chat("Which river?", max_tokens=1)

    started = time.monotonic()
    assert at_once(3, ask_in_turn) == [None] * 3
    assert time.monotonic() - started < 10 * 0.5
    assert len(slow) < 3 * 10 / 2


def test_a_mixed_load_is_answered_as_one_by_one(serve: Serve, tiny_model: RagMiddleModel) -> None:
    """Methods, options, streams and refusals, all at the same time."""
    server = serve(tiny_model, batch_wait=0.02)

    def ask(index: int) -> Any:
        method = METHODS[index % len(METHODS)]
        options = {"max_tokens": 3 + index % 2, "temperature": float(index % 3 == 0), "seed": index}
        question = f"Which river? {'fox ' * (index % 7)}"
        documents = [f"Fox {'abcd'[n]} of {index}." for n in range(1 + index % 4)]
        if index % 5 == 4:
            options["max_tokens"] = 5000  # does not fit
        stream = index % 2 == 0
        body = {"documents": documents, "method": method, **options}
        answer = server.chat(question, stream=stream, **body)
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            text = answer.choices[0].message.content
        prompt = ContextPrompt("", documents, question)
        return text, prompt, method, options

    for index, outcome in enumerate(at_once(12, ask)):
        if index % 5 == 4:
            assert isinstance(outcome, openai.BadRequestError)
            continue
        assert not isinstance(outcome, Exception), outcome
        text, prompt, method, options = outcome
        options["max_new_tokens"] = options.pop("max_tokens")
        expected = tiny_model.generate(
            prompt, method=method, on_missing_documents="ignore", **options
        )
        assert text == expected.text, (index, method)


def test_a_full_queue_refuses(serve: Serve, tiny_model: RagMiddleModel, slow: list[float]) -> None:
    server = serve(tiny_model, max_waiting=2, max_batch_size=1)
    outcomes = at_once(8, lambda _: server.chat("Which river?", max_tokens=10))
    refused = [error for error in outcomes if isinstance(error, openai.RateLimitError)]
    answers = [answer for answer in outcomes if not isinstance(answer, Exception)]
    assert len(refused) + len(answers) == 8
    assert refused
    assert len(answers) >= 2
    assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused)
    assert refused[0].code == "queue_full"
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert server.chat("Which river?", max_tokens=1).choices


def test_of_requests_that_come_two_are_prepared_at_a_time() -> None:
    """And none for which there is no room, or whose client has gone."""
    queue = BatchQueue(cast(Any, None), ServerSettings(model_name="a", methods={}, max_waiting=4))
    now = most = prepared = 0
    lock = threading.Lock()

    def prepare() -> list[AnswerJob]:
        nonlocal now, most, prepared
        with lock:
            now, prepared = now + 1, prepared + 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return []

    async def submit(is_gone: bool) -> None:
        await queue.submit(prepare, AsyncMock(return_value=is_gone))

    async def submit_all() -> list[Any]:
        coming = [submit(is_gone=index == 3) for index in range(6)]
        outcomes = await asyncio.gather(*coming, return_exceptions=True)
        await submit(is_gone=False)  # they have left room
        return outcomes

    outcomes = asyncio.run(submit_all())
    assert outcomes[:3] == [None] * 3
    assert isinstance(outcomes[3], ClientDisconnect)
    assert [getattr(outcome, "status_code", 0) for outcome in outcomes[4:]] == [429] * 2
    assert (prepared, most) == (4, 2)


@contextmanager
def open_request(server: Served, body: bytes) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        yield connection


BODY = (
    b'{"model": "tested", "max_tokens": 200, "stream": %s, '
    b'"messages": [{"role": "user", "content": "Which river?"}]}'
)


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_a_client_that_leaves_ends_its_answer(
    serve: Serve, tiny_model: RagMiddleModel, slow: list[float], stream: bytes
) -> None:
    server = serve(tiny_model)
    with open_request(server, BODY % stream):
        wait_until(lambda: len(slow) > 3)
    wait_until(lambda: not queue_of(server).running)
    assert len(slow) < 100
    assert server.chat("Which river?", max_tokens=1).choices


def test_a_client_that_leaves_while_it_waits(
    serve: Serve, tiny_model: RagMiddleModel, slow: list[float]
) -> None:
    server = serve(tiny_model, max_batch_size=1)
    with open_request(server, BODY % b"true"):
        wait_until(lambda: queue_of(server).running)
        with open_request(server, BODY % b"false"):
            wait_until(lambda: queue_of(server).waiting)
            [waiting] = queue_of(server).waiting
        wait_until(waiting.cancel.is_set)
    wait_until(lambda: not queue_of(server).running)


def test_running_answers_are_finished_at_the_end(
    serve: Serve, tiny_model: RagMiddleModel, slow: list[float]
) -> None:
    server = serve(tiny_model)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.chat, "Which river?", max_tokens=20)
        wait_until(lambda: len(slow) > 3)
        server.server.should_exit = True
        answer = running.result(30)
    assert answer.usage.completion_tokens == 20
    wait_until(lambda: not any("serving" in t.name for t in threading.enumerate()))
    with pytest.raises(openai.APIConnectionError):
        server.chat("Which river?", max_tokens=1)


def test_a_mistake_with_one_prompt_leaves_the_others_their_answers(
    serve: Serve, tiny_model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(tiny_model, batch_wait=0.3)
    whole, sizes = tiny_model.batch, []

    def batch(prompts: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(prompts))
        if any("Rhône" in tiny_model.tokenizer.decode(prompt.input_ids) for prompt in prompts):
            raise torch.OutOfMemoryError
        return whole(prompts, *arguments, **options)

    monkeypatch.setattr(tiny_model, "batch", batch)
    asked = ["Rhône?", "Loire?", "Seine?", "Oder?"]
    answers = at_once(4, lambda index: server.chat(asked[index], max_tokens=2))
    assert max(sizes) > 1
    assert [isinstance(answer, openai.InternalServerError) for answer in answers] == [
        True,
        False,
        False,
        False,
    ]


def test_a_mistake_in_the_model_is_told_and_not_the_end(
    serve: Serve, tiny_model: RagMiddleModel
) -> None:
    server = serve(tiny_model)
    passes = 0

    def fail(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 6:
            raise RuntimeError("out of something")

    with tiny_model.model.register_forward_pre_hook(fail):
        with pytest.raises(openai.APIError, match="The server failed") as raised:
            list(server.chat("Which river?", max_tokens=20, stream=True))
        assert "out of something" not in str(raised.value)
        passes = 5
        with pytest.raises(openai.InternalServerError):
            server.chat("Which river?", max_tokens=20)
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.chat("Which river?", max_tokens=1).choices
