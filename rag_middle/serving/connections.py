"""Connections whose request does not come or comes in very small chunks, or whose answer stays.

Uvicorn limits how long a connection stays open between requests, but not how long it may take to
send the head of one, and nobody has been asked for a key by then: a few hundred clients that send
half a line would keep all others out. So would one that sends a body in chunks of a byte: they are
parsed before anybody looks at the key, thousands at a time, while everything else waits; and one
whose head, or trailer, has no end would fill the memory. Of uvicorn's two parsers only the slow one
has a limit there, so it is used also where the other one (httptools) is installed.

Nor does a connection that is closed end before its client has taken what was written for it: one
that takes nothing would keep it for good.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["timed_protocol"]

#: Chunks of a body may be as small as a client likes, this many of them; the others on average.
_SMALL_CHUNKS, _CHUNK_BYTES = 256, 256
_HEAD_BYTES = 2**16


class _Chunks(h11.Connection):
    """Refuses a body of many tiny chunks, with a `RemoteProtocolError`."""

    _left = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._left = _SMALL_CHUNKS * _CHUNK_BYTES
        elif isinstance(event, h11.Data):
            self._left += len(event.data) - (_CHUNK_BYTES if event.chunk_start else 0)
            if self._left < 0:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class _CountingProtocol(H11Protocol):
    """Uvicorn's protocol, with a parser that counts."""

    conn: h11.Connection

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _Chunks(h11.SERVER, _HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # it must not answer too
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, for its `Config`; it ends what brings no head or takes no answer.

    A body of more than a few hundred tiny chunks is refused with status 400, as is a head or a
    trailer of more than 64 KiB.

    Args:
        seconds: that the head of a request may take, from the connection or its first bytes on;
            and that what was written may wait for the client.
    """

    class TimedProtocol(_CountingProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._deadline: asyncio.TimerHandle | None = None
            self._waits: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # `pause_writing` for every byte left over
            self._deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            answers = self.cycle is not None and not self.cycle.response_complete
            if answers and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            elif not answers and self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            # `close` would wait until the client takes what is left.
            self._waits = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._waits is not None:
                self._waits.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._deadline, self._waits):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

    return TimedProtocol
