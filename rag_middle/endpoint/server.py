"""An OpenAI-compatible server: the models that it lists, and its answers, streamed or whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rag_middle.endpoint.client import Client
from rag_middle.endpoint.wire import CHAT, Reply, StreamedText, broken_off, read_reply, withheld
from rag_middle.errors import EndpointRefusedError
from rag_middle.plain_data import levels_of

__all__ = ["MAX_FACT_LENGTH", "Server"]

MAX_FACT_LENGTH = 1000
"""Characters of what a server says about its models, as far as it is kept or shown."""

_MAX_FACT_LEVELS = 10
#: When vLLM was asked, an id that it draws each time, and whether llama.cpp has loaded the model.
_PASSING = ("created", "permission", "status")
_LIMIT = "max_tokens"
_NEWER_LIMIT = "max_completion_tokens"  # of OpenAI's newer models, which refuse the other


class Server:
    """Asks one server, from any number of threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._limit_field = _LIMIT

    @property
    def url(self) -> str:
        """Its address."""
        return self._client.address.url

    def models(self) -> dict[str, dict[str, Any]]:
        """What it says of its models, by name; nothing where it has no list of them.

        Raises:
            EndpointError: it cannot be reached, refuses, or replies with something else.
        """
        try:
            reply = self._client.get("/models")
        except EndpointRefusedError as error:
            if error.status in (404, 405, 501):
                return {}
            raise
        entries = reply.get("data")
        listed: dict[str, dict[str, Any]] = {}
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, Mapping) and isinstance(entry.get("id"), str):
                listed[entry["id"]] = {
                    name: value
                    for name, value in entry.items()
                    if name not in _PASSING and _can_be_kept([name, value])
                }
        facts = self._client.without_parts_of_key([*listed.values()])
        return dict(zip(listed, facts, strict=True))

    def errors_without_key(self) -> AbstractContextManager[None]:
        """Errors raised within say no key of this server, see `Client.errors_without_key`."""
        return self._client.errors_without_key()

    def answer(
        self,
        path: str,
        body: Mapping[str, Any],
        stopped: threading.Event,
        emit: Callable[[str], None] | None = None,
    ) -> Reply:
        """The answer to a request; one that the server's content filter withheld is empty.

        Args:
            path: of the resource, from `wire.resource`.
            body: from `wire.request_body`; its limit of new tokens goes under the name that the
                server takes.
            stopped: when set, the answer ends, or no further attempt is made.
            emit: called with each piece of text of a streamed answer; None for a whole one.

        Raises:
            EndpointError: it cannot be reached, refuses, or replies with something else.
        """
        if emit is not None:
            body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            return self._answer(path, self._with_limit(body), stopped, emit)
        except EndpointRefusedError as error:
            if path != CHAT or error.status != 400 or self._limit_field == _NEWER_LIMIT:
                raise
            if _NEWER_LIMIT not in str(error):
                raise
            self._limit_field = _NEWER_LIMIT
        return self._answer(path, self._with_limit(body), stopped, emit)

    def _answer(
        self,
        path: str,
        body: Mapping[str, Any],
        stopped: threading.Event,
        emit: Callable[[str], None] | None,
    ) -> Reply:
        if emit is None:
            try:
                reply = self._client.post(
                    path, body, stopped, lambda reply: broken_off(reply, self.url)
                )
            except EndpointRefusedError as error:
                if error.filtered:
                    return withheld()
                raise
            return read_reply(reply, self.url, self._client.strikeout())
        text = StreamedText(self.url, self._client.strikeout())
        try:
            for event in self._client.events(path, body, stopped):
                if piece := text.take(event):
                    emit(piece)
        except EndpointRefusedError as error:
            if not error.filtered:
                raise
            text.withhold()
        if piece := text.rest():
            emit(piece)
        return text.reply(cancelled=stopped.is_set())

    def _with_limit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._limit_field if name == _LIMIT else name: body[name] for name in body}


def _can_be_kept(fact: object) -> bool:
    """Whether records and reports can hold it: they are JSON, which knows no infinity."""
    if levels_of(fact) > _MAX_FACT_LEVELS:
        return False
    try:
        return len(json.dumps(fact, allow_nan=False, ensure_ascii=False)) <= MAX_FACT_LENGTH
    except ValueError:
        return False
