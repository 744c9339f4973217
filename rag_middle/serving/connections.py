"""Connections whose request does not come.

Uvicorn limits how long a connection stays open between requests, but not how long it may take to
send the head of one, and nobody has been asked for a key by then: a few hundred clients that send
half a line would keep all others out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["timed_protocol"]


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, for its `Config`; it closes what brings no head of a request.

    Args:
        seconds: that the head of a request may take, from the connection or its first bytes on.
    """
    base: Any = AutoHTTPProtocol  # of either of its parsers

    class TimedProtocol(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            answers = self.cycle is not None and not self.cycle.response_complete
            if answers and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            elif not answers and self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

    return TimedProtocol
