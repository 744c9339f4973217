"""An OpenAI-compatible server: its address and key, its models, its answers (`openai` asks)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx

from rag_middle.errors import ConfigError, EndpointError
from rag_middle.extras import require
from rag_middle.generation import FinishReason
from rag_middle.wording import shortened

KEY_VARIABLE = "OPENAI_API_KEY"

_CONNECT_SECONDS = 10.0
#: When vLLM was asked, an id that it draws each time, and whether llama.cpp has loaded the model.
_PASSING_FACTS = ("created", "permission", "status")
#: What to do, by the status of a reply; 0: there was none, or none with an answer.
_ADVICE = {
    0: "Is endpoint the address of a running server, with its path (/v1)? Or raise timeout.",
    400: "Send fewer or shorter documents, or other options.",
    401: "Put a valid key into an environment variable and name that with api_key_env.",
    403: "Put a valid key into an environment variable and name that with api_key_env.",
    404: "Check model, and the path of endpoint.",
    300: "It redirects to another address, and nothing is sent there: if you trust it, name it.",
    429: "Run it again later: a run with records goes on where it stopped.",
}


@dataclass(slots=True)
class Reply:
    """An answer, as far as it has come; `served` is what `rag-middle serve` says of it."""

    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0
    served: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event of a stream, or a whole reply, and return its text."""
        choice = (event.get("choices") or [{}])[0]
        message = choice.get("message") or choice.get("delta") or choice
        piece = message.get("content", message.get("text")) or ""
        if isinstance(piece, list):  # Mistral's parts: what it thought has no text
            piece = "".join(part.get("text", "") for part in piece)
        self.text += piece
        if reason := choice.get("finish_reason"):
            self.finish_reason = reason if reason in ("length", "content_filter") else "stop"
        if message.get("refusal"):
            self.finish_reason = "content_filter"
        if usage := event.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens") or 0
            self.new_tokens = usage.get("completion_tokens") or 0
        self.served = event.get("rag_middle") or self.served
        return piece


class Server:
    """Asks one server, from any number of threads; arguments and errors as of `EndpointModel`."""

    def __init__(
        self, endpoint: str, api_key_env: str | None, *, timeout: float, retries: int
    ) -> None:
        self.url = checked_url(endpoint)
        self._openai = require("openai", package="openai", what="--endpoint", extra="endpoint")
        # Those of httpx come from within a stream.
        self._failures = (self._openai.OpenAIError, httpx.TransportError, ValueError)
        key = api_key(api_key_env, self.url)
        http = self._openai.DefaultHttpxClient(
            # What is for this machine must not leave it, in plain text, for a proxy.
            trust_env=not is_local(urlsplit(self.url).hostname or ""),
            follow_redirects=False,  # to a host that nobody named
        )
        weakref.finalize(self, http.close)
        # openai takes this with each request only.
        self._options = {} if key else {"headers": {"Authorization": self._openai.omit}}
        self._client = self._openai.OpenAI(
            base_url=self.url,
            api_key=key or "none",  # else it looks for one itself
            timeout=self._openai.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            max_retries=retries,
            http_client=http,
        )

    def models(self) -> dict[str, dict[str, Any]]:
        """What it says of its models, by name; nothing where it has no list of them."""
        try:
            # Not tried again: a wrong address is told at once.
            once = {**self._options, "max_retries": 0}
            reply = self._client.get("/models", cast_to=object, options=once)
            is_empty = isinstance(reply, Mapping) and not reply.get("data", True)
            entries = [] if is_empty else _checked(reply, "data")["data"]
        except self._failures as error:
            if getattr(error, "status_code", 0) in (404, 405, 501):
                return {}
            raise self._error(error) from error
        return {
            entry["id"]: {name: entry[name] for name in entry if name not in _PASSING_FACTS}
            for entry in entries
        }

    def ask(self, body: Mapping[str, Any], reply: Reply, *, streamed: bool) -> Iterator[str]:
        """Send a request, and fill `reply` with the answer; yields its text as it comes.

        Args:
            body: with ``messages``, or with ``prompt`` for plain completion.
            reply: empty; what the server's content filter withheld is missing.
            streamed: ask for pieces.

        Raises:
            EndpointError: it cannot be reached, refuses, or replies with something else.
        """
        path = "/chat/completions" if "messages" in body else "/completions"
        try:
            if not streamed:
                whole = self._client.post(path, body=body, cast_to=object, options=self._options)
                yield reply.take(_checked(whole, "choices"))
                reply.finish_reason = reply.finish_reason or "stop"
                return
            body = {"stream_options": {"include_usage": True}, **body, "stream": True}
            how = {"stream": True, "stream_cls": self._openai.Stream[object]}
            with self._client.post(
                path, body=body, cast_to=object, options=self._options, **how
            ) as events:
                for event in events:
                    yield reply.take(event)
            if reply.finish_reason is None:
                raise ValueError(f"its stream ended after {len(reply.text)} characters")
        except self._failures as error:
            if getattr(error, "code", None) != "content_filter":
                raise self._error(error) from error
            reply.finish_reason = "content_filter"

    def _error(self, error: Exception) -> EndpointError:
        status = getattr(error, "status_code", 0)
        advice = _ADVICE.get(
            status, _ADVICE[429 if status >= 500 else 400 if status >= 400 else 300]
        )
        said = shortened(f"{error} {error.__cause__ or ''}".strip())
        return EndpointError(f"No answer from {self.url}: {said}. {advice}")


def _checked(reply: object, name: str) -> Mapping[str, Any]:
    """A reply, if it has something under `name`."""
    if isinstance(reply, Mapping) and reply.get(name):
        return reply
    raise ValueError(f"there is no {name!r} in {reply!r}")


def checked_url(url: str) -> str:
    """The address that a user wrote, without a slash at its end; without a path, ``/v1`` is meant.

    Raises:
        ConfigError: it is none of http or https, or has a password or a query.
    """
    parts = urlsplit(url)
    if parts.scheme in ("http", "https") and parts.hostname and not {*"@?#"} & {*url}:
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
    raise ConfigError(
        "endpoint must be an address such as http://localhost:8000/v1, without password or query, "
        "since records and reports show it. Name the environment variable of a key: api_key_env."
    )


def is_local(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(variable: str | None, url: str) -> str | None:
    """The key for a server: that of a variable, none for ``""``, by default that of `KEY_VARIABLE`.

    By default none goes to another machine unencrypted.

    Raises:
        ConfigError: the variable is not set. The message does not quote it: a key may
            have been given in place of its variable's name.
    """
    if variable is None:
        is_safe = url.startswith("https:") or is_local(urlsplit(url).hostname or "")
        return os.environ.get(KEY_VARIABLE) or None if is_safe else None
    if variable and not os.environ.get(variable):
        raise ConfigError(
            "api_key_env takes the name of an environment variable, and the one given is not set: "
            "export it, or leave the name empty where no key is needed."
        )
    return os.environ.get(variable) or None
