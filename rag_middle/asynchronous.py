"""Calls that take their time, kept off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from rag_middle.notices import Caller, called_from, caller

__all__ = ["in_thread", "pieces_in_thread"]

T = TypeVar("T")
_END: Any = object()


async def in_thread(call: Callable[[threading.Event], T], place: Caller | None = None) -> T:
    """``call(cancel)`` in a thread; cancelling the task sets `cancel`.

    Args:
        call: takes its time.
        place: where it warns; by default the caller's own line.
    """
    cancel = threading.Event()
    try:
        with called_from(place or caller()):
            return await asyncio.to_thread(call, cancel)
    except asyncio.CancelledError:
        cancel.set()
        raise


async def pieces_in_thread(pieces: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """What a generator yields, each piece waited for in a thread.

    Leaving early, or cancelling the task, closes the generator, without waiting for that.
    """
    loop, place = asyncio.get_running_loop(), caller()
    pending: asyncio.Future[Any] | None = None

    def close(_: object = None) -> None:
        if pending is not None and not pending.cancelled():
            pending.exception()  # nobody waits for it any longer
        loop.run_in_executor(None, pieces.close)

    try:
        while True:
            with called_from(place):
                step = partial(copy_context().run, next, pieces, _END)
            pending = loop.run_in_executor(None, step)
            piece = await asyncio.shield(pending)
            if piece is _END:
                return
            yield piece
    finally:
        # A generator that is running cannot be closed: that waits for the token under way.
        if pending is None or pending.done():
            close()
        else:
            pending.add_done_callback(close)
