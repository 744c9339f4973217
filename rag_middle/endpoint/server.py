"""An OpenAI-compatible server: its address and key, its models, its answers (`openai` asks)."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from rag_middle.errors import ConfigError, EndpointError
from rag_middle.extras import require
from rag_middle.generation import FinishReason, Usage
from rag_middle.wording import shortened

KEY_VARIABLE = "OPENAI_API_KEY"

_CONNECT_SECONDS = 10.0
_CHECK_ADDRESS = "Is endpoint the address of an OpenAI-compatible server, with its path (/v1)?"
_TOO_LONG = re.compile(r"context.?(length|window)|too (long|many tokens)|max_model_len", re.I)
#: When vLLM was asked, an id that it draws each time, and whether llama.cpp has loaded the model.
_PASSING_FACTS = ("created", "permission", "status")
_NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)
_NEWER_LIMIT = "max_completion_tokens"  # of OpenAI's newer models, which refuse max_tokens


@dataclass(slots=True)
class Reply:
    """What a server answers to one request, as far as it has come.

    Attributes:
        text: that the model wrote.
        finish_reason: why it ended; None while it has not.
        usage: token counts, 0 where the server tells none.
        served: what `rag-middle serve` says of the method and the documents.
        thought: it has sent thinking beside the text.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage = _NO_USAGE
    served: Mapping[str, Any] | None = None
    thought: bool = False

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event of a stream, or a whole reply, and return its text."""
        choice = (event.get("choices") or [{}])[0]
        message = choice.get("message") or choice.get("delta") or choice
        piece = message.get("content", message.get("text")) or ""
        if not isinstance(piece, str):  # Mistral's has parts, some of them thinking
            self.thought = True
            piece = "".join(part["text"] for part in piece if part.get("type") == "text")
        self.text += piece
        self.thought |= bool(message.get("reasoning_content") or message.get("reasoning"))
        if said := choice.get("finish_reason"):
            self.finish_reason = said if said in ("length", "content_filter") else "stop"
        if message.get("refusal"):
            self.finish_reason = "content_filter"
        if usage := event.get("usage"):
            self.usage = Usage(
                prompt_tokens=usage.get("prompt_tokens") or 0,
                completion_tokens=usage.get("completion_tokens") or 0,
            )
        self.served = event.get("rag_middle") or self.served
        return piece


class Server:
    """Asks one server, from any number of threads.

    Args:
        endpoint: its address.
        api_key_env: see `api_key`.
        timeout: seconds until it answers, or sends the next piece.
        retries: after failures that may pass.

    Raises:
        ConfigError: the address or the key makes no sense.
        MissingExtraError: `openai` is not installed.
    """

    def __init__(
        self, endpoint: str, api_key_env: str | None, *, timeout: float, retries: int
    ) -> None:
        self.url = checked_url(endpoint)
        self._openai = require("openai", package="openai", what="--endpoint", extra="endpoint")
        self._timeout = timeout
        self._limit = "max_tokens"
        parts = urlsplit(self.url)
        local = is_local(parts.hostname or "")
        self._key = api_key(api_key_env, may_send=local or parts.scheme == "https")
        self._client = self._openai.OpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            timeout=self._openai.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            max_retries=retries,
            # No proxy on this machine; and no redirect, which could lead documents elsewhere.
            http_client=self._openai.DefaultHttpxClient(
                trust_env=not local, follow_redirects=False
            ),
        )
        weakref.finalize(self, self._client.close)
        self._headers = {} if self._key else {"Authorization": self._openai.Omit()}

    def models(self) -> dict[str, dict[str, Any]]:
        """What it says of its models, by name; nothing where it has no list of them.

        Raises:
            EndpointError: it cannot be reached, refuses, or replies with something else.
        """
        # Not tried again: a wrong address is told at once.
        client = self._client.with_options(max_retries=0)
        try:
            with self._errors():
                reply = client.models.with_raw_response.list(extra_headers=self._headers)
                entries = reply.http_response.json().get("data") or []
        except EndpointError as error:
            if error.status in (404, 405, 501):
                return {}
            raise
        return {
            entry["id"]: {name: entry[name] for name in entry if name not in _PASSING_FACTS}
            for entry in entries
        }

    def answer(
        self,
        body: Mapping[str, Any],
        stopped: threading.Event,
        emit: Callable[[str], None] | None = None,
    ) -> Reply:
        """The answer to a request; one that the server's content filter withheld is empty.

        Args:
            body: with ``messages``, or with ``prompt`` for plain completion.
            stopped: when set, a streamed answer ends.
            emit: called with each piece of text of a streamed answer; None for a whole one.

        Raises:
            EndpointError: it cannot be reached, refuses, or replies with something else.
        """
        reply = Reply()
        try:
            with self._errors():
                self._answer(body, reply, stopped, emit)
        except EndpointError as error:
            cause = error.__cause__
            if getattr(cause, "code", None) == "content_filter":
                reply.finish_reason = "content_filter"
            elif _NEWER_LIMIT in str(cause) and self._limit != _NEWER_LIMIT:
                self._limit = _NEWER_LIMIT
                return self.answer(body, stopped, emit)
            else:
                raise
        if reply.finish_reason == "length" and reply.thought and not reply.text:
            raise EndpointError(
                f"The model at {self.url} has spent its tokens on thinking. Allow more with "
                "max_new_tokens, or turn thinking off on the server.",
            )
        return reply

    def _answer(
        self,
        body: Mapping[str, Any],
        reply: Reply,
        stopped: threading.Event,
        emit: Callable[[str], None] | None,
    ) -> None:
        fields = {self._limit if name == "max_tokens" else name: body[name] for name in body}
        kind = self._client.chat.completions if "messages" in body else self._client.completions
        text = {name: fields.pop(name) for name in ("model", "messages", "prompt") if name in body}
        streamed = {} if emit is None else {"stream": True}
        if streamed:
            fields.setdefault("stream_options", {"include_usage": True})
        sent = kind.create(**text, **streamed, extra_body=fields, extra_headers=self._headers)
        if emit is None:
            content = sent.to_dict(warnings=False) if hasattr(sent, "to_dict") else {}
            if not content.get("choices"):
                raise EndpointError(
                    f"{self.url} sent a reply without an answer ({shortened(repr(sent))}). "
                    + _CHECK_ADDRESS
                )
            reply.take(content)
            reply.finish_reason = reply.finish_reason or "stop"
            return
        with sent:
            for event in sent:
                if stopped.is_set():
                    break
                if piece := reply.take(event.to_dict(warnings=False)):
                    emit(piece)
        if stopped.is_set() and reply.finish_reason is None:
            reply.finish_reason = "cancelled"
        if reply.finish_reason is None:
            raise self._cut_off(reply)

    def _cut_off(self, reply: Reply) -> EndpointError:
        return EndpointError(
            f"{self.url} ended the stream in the middle of an answer, after {len(reply.text)} "
            "characters. Ask again; if it stays, look at the server's log."
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the client as those of this package."""
        import httpx

        openai = self._openai
        try:
            yield
        except (openai.APITimeoutError, httpx.TimeoutException) as error:
            raise EndpointError(
                f"{self.url} did not answer within {self._timeout:g} seconds. Allow more with "
                "timeout, or send fewer requests at a time.",
            ) from error
        except (openai.APIConnectionError, httpx.TransportError) as error:
            raise EndpointError(
                f"There is no connection to {self.url} ({error.__cause__ or error}). Is the "
                "server running, and is endpoint its address?",
            ) from error
        except openai.APIStatusError as error:
            raise self._refusal(error) from error
        except openai.APIError as error:
            raise EndpointError(
                f"{self.url} ended an answer with an error: {shortened(repr(error.message))}. Ask "
                "again; if it stays, look at the server's log."
            ) from error
        except (openai.OpenAIError, ValueError) as error:
            raise EndpointError(
                f"{self.url} sent something else than JSON ({shortened(str(error))}). "
                + _CHECK_ADDRESS
            ) from error

    def _refusal(self, error: Any) -> EndpointError:
        status = error.status_code
        said = error.body.get("message") if isinstance(error.body, Mapping) else None
        said = str(said or error.message)
        step = "Check the options against what that server takes."
        if status in (401, 403):
            step = (
                f"{'The key was refused' if self._key else 'No key was sent'}: put a valid one "
                "into an environment variable and name that with api_key_env."
            )
        elif status == 404:
            step = "Check model and the path of endpoint."
        elif status == 429 or status >= 500:
            step = "Run it again later: a run with records goes on where it stopped."
        elif _TOO_LONG.search(said):
            step = "Send fewer or shorter documents, or raise the server's context window."
        elif "chat template" in said.lower():
            step = "Send prompts as they are with template='raw' (--template raw)."
        return EndpointError(
            f"{self.url} refuses the request (status {status}: {shortened(repr(said))}). {step}",
            status=status,
        )


def checked_url(url: str) -> str:
    """The address that a user wrote, without a slash at its end; without a path, ``/v1`` is meant.

    Raises:
        ConfigError: it is none of http or https, or holds more than host, port and path:
            what may be a secret would go into records and reports.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("endpoint must be an address such as http://localhost:8000/v1.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "endpoint must hold no password and nothing behind its path: it goes into records "
            "and reports. Put the key into an environment variable and name that with "
            "api_key_env.",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def is_local(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(variable: str | None, *, may_send: bool) -> str | None:
    """The key for a server; None for none.

    Args:
        variable: that holds the key. None for `KEY_VARIABLE` if it is set and `may_send`; ``""``
            for no key.
        may_send: the key would not leave this machine unencrypted.

    Raises:
        ConfigError: the variable is not set. The message does not quote it: a key may
            have been given in place of its variable's name.
    """
    if variable is None:
        return os.environ.get(KEY_VARIABLE) or None if may_send else None
    if variable == "":
        return None
    if key := os.environ.get(variable):
        return key
    raise ConfigError(
        "api_key_env takes the name of an environment variable, and the one given is not set: "
        "export it, or leave the name empty where no key is needed.",
    )
