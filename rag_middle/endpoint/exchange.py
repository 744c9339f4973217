"""One request over HTTP and its reply, which ends by a deadline whatever the server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from time import monotonic
from typing import Any

import httpx

__all__ = ["Exchange"]

_GRACE_SECONDS = 1.0  # beyond the deadline: httpx's own error, of one read, says more
_STOP_CHECK_SECONDS = 0.1


class Exchange:
    """A request that is sent when this is made, and the response to it, to be closed.

    Each read of httpx has a time limit, all of them together have none: a server that sends byte by
    byte, headers or what frames the content, would hold the caller. So a thread waits for the
    headers, and the connection is cut where the content has not ended by the deadline.

    Args:
        http: keeps no connections: this one is cut, so nobody else may use it.
        seconds: from now to the last byte.
        stopped: when set, the connection is cut too.

    Attributes:
        response: its headers; the content is read by `content`.

    Raises:
        TimeoutError: there are no headers by then.
        httpx.HTTPError: the connection fails.
    """

    def __init__(
        self,
        http: httpx.Client,
        request: httpx.Request,
        seconds: float,
        stopped: threading.Event | None = None,
    ) -> None:
        self._until = monotonic() + seconds
        self._stopped = stopped
        self._connection: Any = None  # httpcore's NetworkStream
        self._is_cut = False
        self._answered: Future[httpx.Response] = Future()
        self._closed = threading.Event()
        request.extensions = {**request.extensions, "trace": self._note_connection}
        threading.Thread(
            target=self._send, args=(http, request), name="rag-middle-send", daemon=True
        ).start()
        try:
            while not wait([self._answered], self._pause(_GRACE_SECONDS)).done:
                if self._has_to_end(_GRACE_SECONDS) and self._answered.cancel():
                    raise TimeoutError
            self.response = self._answered.result()
        except BaseException:  # Ctrl-C too
            self._closed.set()
            self._cut()
            raise

    def content(self) -> Iterator[bytes]:
        """What the server sends, as it sends it: httpx would unpack any amount at once.

        Raises:
            TimeoutError: it does not end by the deadline, or was stopped.
            httpx.HTTPError: the connection fails.
        """
        try:
            for chunk in self.response.iter_raw():
                self._check_time()
                yield chunk
        except httpx.HTTPError:
            self._check_time()  # cut by the thread
            raise
        self._check_time()  # where content ends with the connection, a cut one looks whole

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self.response.close()

    def _check_time(self) -> None:
        if self._has_to_end():
            raise TimeoutError

    def _has_to_end(self, grace: float = 0.0) -> bool:
        stopped = self._stopped is not None and self._stopped.is_set()
        return stopped or monotonic() > self._until + grace

    def _pause(self, grace: float = 0.0) -> float:
        """Seconds until it may have to end."""
        left = max(0.0, self._until + grace - monotonic())
        return left if self._stopped is None else min(left, _STOP_CHECK_SECONDS)

    def _send(self, http: httpx.Client, request: httpx.Request) -> None:
        try:
            response = http.send(request, stream=True)
        except BaseException as error:
            with suppress(InvalidStateError):
                self._answered.set_exception(error)
            return
        try:
            self._answered.set_result(response)
        except InvalidStateError:  # nobody waits any longer
            response.close()
            return
        while not self._closed.wait(self._pause()):
            if self._has_to_end():
                self._cut()
                return

    def _note_connection(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connection = info["return_value"]
            if self._is_cut:
                self._cut()

    def _cut(self) -> None:
        self._is_cut = True
        if self._connection is not None:
            # Not `close`, which a read that has begun does not notice; and the method of plain
            # sockets, as that of encrypted ones would have the rest read as it is.
            with suppress(OSError):
                socket.socket.shutdown(self._connection.get_extra_info("socket"), socket.SHUT_RDWR)
