"""One request over HTTP and its reply, which ends by a deadline whatever the server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from time import monotonic

import httpx

__all__ = ["Exchange"]

_GRACE_SECONDS = 1.0  # beyond the deadline: httpx's own error, of one read, says more


class Exchange:
    """A request that is sent when this is made, and the response to it, to be closed.

    Each read of httpx has a time limit, all of them together have none: a server that sends byte by
    byte, headers or what frames the content, would hold the caller. So a thread waits for the
    headers, and cuts the connection where the content has not ended by the deadline.

    Args:
        seconds: from now to the last byte.

    Attributes:
        response: its headers; the content is read by `content`.

    Raises:
        TimeoutError: there are no headers by then.
        httpx.HTTPError: the connection fails.
    """

    def __init__(self, http: httpx.Client, request: httpx.Request, seconds: float) -> None:
        self._until = monotonic() + seconds
        self._answered: Future[httpx.Response] = Future()
        self._closed = threading.Event()
        threading.Thread(
            target=self._wait, args=(http, request), name="rag-middle-send", daemon=True
        ).start()
        try:
            self.response = self._answered.result(seconds + _GRACE_SECONDS)
        except TimeoutError:
            if self._answered.cancel():
                raise
            self.response = self._answered.result()  # it came just now

    def content(self) -> Iterator[bytes]:
        """What the server sends, as it sends it: httpx would unpack any amount at once.

        Raises:
            TimeoutError: it does not end by the deadline.
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
        """Give the connection back, or close it where content is left."""
        self._closed.set()
        self.response.close()

    def _check_time(self) -> None:
        if monotonic() > self._until:
            raise TimeoutError

    def _wait(self, http: httpx.Client, request: httpx.Request) -> None:
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
        stream = response.extensions.get("network_stream")
        if not self._closed.wait(max(0.0, self._until - monotonic())) and stream:
            # Not `close`, which a read that has begun does not notice; and the method of plain
            # sockets, as that of encrypted ones would have the rest read as it is.
            with suppress(OSError):
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)
