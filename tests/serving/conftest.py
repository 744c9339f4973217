"""Servers that listen, in a thread of the tests, and models for them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from rag_middle import Document
from rag_middle.generation import RagMiddleModel
from rag_middle.profiles import read_profile
from rag_middle.serving import ServerSettings, create_app, named_methods
from tests.reader import READER_PROFILE, reader_path
from tests.shipped_profiles import shipping
from tests.tiny_models import speaking
from tests.tokenizers import CHATML, byte_level_bpe

METHODS = ("none", "pine", "ape", "ms_poe", "attention_buckets", "long_context_reorder")


@dataclass(frozen=True)
class Served:
    """A server that listens.

    Attributes:
        url: without a path.
        model: behind it.
        server: of uvicorn.
        client: OpenAI's; it does not try again.
    """

    url: str
    model: RagMiddleModel
    server: uvicorn.Server
    client: openai.OpenAI

    def chat(self, content: Any, **body: Any) -> Any:
        """A question as one message of the user."""
        client = self.client
        known = {n: body.pop(n) for n in ("stream", "n", "seed", "stop", "logprobs") if n in body}
        return client.chat.completions.create(
            model="tested",
            messages=[{"role": "user", "content": content}],
            extra_body=body,
            **known,
        )

    def post(self, body: Any, path: str = "chat/completions", **more: Any) -> httpx.Response:
        """A request without a client's help."""
        return httpx.post(f"{self.url}/v1/{path}", json=body, timeout=60, verify=False, **more)


Serve = Callable[..., Served]


@contextmanager
def serving(
    model: RagMiddleModel, methods: tuple[str, ...] = METHODS, **more: Any
) -> Iterator[Served]:
    """A server for the length of a block."""
    settings = ServerSettings(model_name="tested", methods=named_methods(model, methods), **more)
    app = create_app(model, settings)
    config = uvicorn.Config(
        app,
        port=0,
        http="h11",
        h11_max_incomplete_event_size=2**16,
        log_level="error",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        assert thread.is_alive()
        time.sleep(0.01)
    [listener] = server.servers[0].sockets
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    try:
        with client:  # connections that nobody closes are a warning in a later test
            yield Served(url, model, server, client)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def tiny_model() -> RagMiddleModel:
    """Random weights and a chat template: quick, and its text is nonsense."""
    tokenizer = byte_level_bpe(chat_template=CHATML)
    return speaking("serving", tokenizer)


@pytest.fixture(scope="session", autouse=True)
def _preset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with shipping(tmp_path_factory.mktemp("presets"), {"reader": read_profile(READER_PROFILE)}):
        yield


@pytest.fixture(scope="session")
def reader() -> RagMiddleModel:
    """Answers right; its profile is served as the preset ``lpes:reader``."""
    return RagMiddleModel.from_pretrained(reader_path(), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def server(tiny_model: RagMiddleModel) -> Iterator[Served]:
    """The tiny model, with ordinary limits."""
    with serving(tiny_model) as served:
        yield served


@pytest.fixture(scope="module")
def reader_server(reader: RagMiddleModel) -> Iterator[Served]:
    """The reader, with ordinary limits."""
    with serving(reader, ("none", "pine", "lpes:reader")) as served:
        yield served


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(model, **settings)``: a server of the test's own."""
    with ExitStack() as stack:
        yield lambda model, *args, **more: stack.enter_context(serving(model, *args, **more))


@pytest.fixture
def slow(tiny_model: RagMiddleModel) -> Iterator[list[float]]:
    """Every forward pass of the tiny model takes 30 ms longer; the list grows with each."""
    passes: list[float] = []

    def wait(*_: object) -> None:
        passes.append(time.monotonic())
        time.sleep(0.03)

    with tiny_model.model.register_forward_pre_hook(wait):
        yield passes


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return [
        Document("Paris is the capital of France.", title="Paris"),
        Document("Lyon lies on the river.", title="Lyon"),
        Document("The quick brown fox.", title="Fox"),
    ]
