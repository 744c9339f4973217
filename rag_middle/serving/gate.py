"""Before anything is read: keys, sizes, and clients that take too long."""

from __future__ import annotations

import asyncio
import hmac
import json
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag_middle.serving.errors import ApiError
from rag_middle.serving.settings import API_KEY_VARIABLE

#: For those who watch a server: they say nothing of requests. Everything else needs the key.
_OPEN = frozenset({"/health", "/ready", "/metrics"})
#: Objects and lists in a body. A message is one of them, or three with a block of text.
_MOST_CONTAINERS = 20_000


class _SlowClientError(Exception):
    """A client does not take its answer."""


class Gate:
    """ASGI middleware. The body is here as a whole before the application sees the request.

    Args:
        app: what lies behind.
        api_key: as of `ServerSettings`, like the limits.
        max_body_bytes: see there.
        client_timeout: see there.
        names_requests: whether a response has a new ``x-request-id``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        max_body_bytes: int,
        client_timeout: float,
        names_requests: bool = True,
    ) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()
        self._max_body_bytes = max_body_bytes
        self._client_timeout = client_timeout
        self._names_requests = names_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex

        async def send_in_time(message: Message) -> None:
            if self._names_requests and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            try:
                async with asyncio.timeout(self._client_timeout):
                    await send(message)
            except TimeoutError:
                raise _SlowClientError from None

        try:
            try:
                self._check_key(scope)
                body = await self._body(scope, receive)
                _check_containers(body or b"")
            except ApiError as refusal:
                await refusal.response()(scope, receive, send_in_time)
                return
            if body is not None:
                await self._app(scope, replayed(body, receive), send_in_time)
        except _SlowClientError:
            return  # the server closes the connection of an answer that is not complete

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or route_path(scope) in _OPEN:
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        # As bytes: what compares in constant time takes no other characters than ASCII's.
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            key.strip().encode("utf-8", "replace"), self._key
        ):
            raise ApiError(
                401,
                "The API key is missing or wrong. Send 'Authorization: Bearer KEY' with the key "
                f"that the server got in {API_KEY_VARIABLE}.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body of the request; None where the client has left."""
        most = self._max_body_bytes
        stated = Headers(scope=scope).get("content-length", "")
        too_long = stated.isdecimal() and int(stated) > most
        body = bytearray()
        try:
            async with asyncio.timeout(self._client_timeout):
                while not too_long:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    too_long = len(body) > most
                    if not too_long and not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408,
                "The request did not arrive within "
                f"{self._client_timeout:g} seconds. Send it again.",
                headers={"Connection": "close"},
            ) from None
        raise ApiError(
            413,
            f"The body is longer than {most} bytes. Send fewer or shorter documents.",
            headers={"Connection": "close"},
        )


def _check_containers(body: bytes) -> None:
    """Refuse a body of very many objects and lists before anything is made of them.

    To read millions of empty lists takes ten seconds, in which nobody else is answered.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError:
        return  # reading it says so
    if _containers(text) <= _MOST_CONTAINERS:
        return
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]  # of strings
    if _containers("".join(outside)) > _MOST_CONTAINERS:
        raise ApiError(
            400,
            f"The body holds more than {_MOST_CONTAINERS:,} objects and lists: send fewer "
            "messages, blocks and documents.",
        )


def _containers(text: str) -> int:
    return text.count("[") + text.count("{")


def route_path(scope: Scope) -> str:
    """The path that a route is looked up by, without what the application is mounted under.

    Servers with a root path, `Mount` and Ray's route prefix put that in front of the path.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body first, then whatever else happens: the client leaves."""
    unread = True

    async def replay() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
