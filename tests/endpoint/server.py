"""A small OpenAI-compatible server in a thread: a real model behind it, or replies by a script."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.generation import RagMiddleModel

MODEL = "tiny"


@dataclass
class Request:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """Of the last message."""
        text = self.body["messages"][-1]["content"]
        assert isinstance(text, str)
        return text


@dataclass
class Said:
    """A reply: plain data as JSON, bytes as they are."""

    content: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Reply = Callable[[Request], Said]


class Server(ThreadingHTTPServer):
    """Answers by a function, and keeps what arrived."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, reply: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.models: Said = Said({"object": "list", "data": [{"id": MODEL, "created": 1}]})
        self.asked: list[Request] = []  # without those for the list of models

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no mistake of the server."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._send(self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = Request(self.path, dict(self.headers), body)
        self.server.asked.append(request)
        self._send(self.server.reply(request))

    def _send(self, said: Said) -> None:
        content = said.content
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(said.status)
        length = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        for name, value in {**length, **said.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(reply: Reply) -> Iterator[Server]:
    """A server for the length of a block."""
    server = Server(reply)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(text: str, **more: Any) -> dict[str, Any]:
    """A reply."""
    return {
        "choices": [{"message": {"content": text}, "finish_reason": "stop", **more}],
        "usage": {"prompt_tokens": 7_000, "completion_tokens": 2},
    }


def saying(text: str) -> Reply:
    """The same answer to everything."""
    return lambda request: Said(answer(text))


def events(*pieces: str, finish: str | None = "stop", last: Any = None) -> Said:
    """An answer in pieces, as servers stream it; `last` is one more event."""
    chunks: list[Any] = [{"choices": [{"delta": {"content": p}}]} for p in pieces]
    if finish:
        chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 7_000, "completion_tokens": 3}})
    chunks += [] if last is None else [last]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    content = "".join([*lines, "data: [DONE]\n\n"]).encode()
    return Said(content, headers={"Content-Type": "text/event-stream"})


def of_model(model: RagMiddleModel) -> Reply:
    """What a model behind the interface says: it sees text only, and knows of no documents."""

    def reply(request: Request) -> Said:
        generation = model.generate(
            ContextPrompt(suffix=request.text),
            template="chat",
            max_new_tokens=request.body["max_tokens"],
            temperature=request.body["temperature"],
            stop=request.body.get("stop", ()),
            on_missing_documents="ignore",
        )
        content = answer(generation.text, finish_reason=generation.finish_reason)
        content["usage"]["prompt_tokens"] = generation.usage.prompt_tokens
        return Said(content)

    return reply
