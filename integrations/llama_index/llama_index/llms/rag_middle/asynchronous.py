"""Calls that take their time, kept off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from llama_index.llms.rag_middle.requests import Request

__all__ = ["in_thread", "streamed_in_thread"]

T = TypeVar("T")
_END = object()


async def in_thread(call: Callable[[Request], T], request: Request) -> T:
    """``call(request)`` in a thread. Cancelling the task ends the generation after its token."""
    cancel = threading.Event()
    # A caller's own event may serve other requests too and is not ours to set.
    own = Request(request.prompt, {"cancel": cancel, **request.options})
    try:
        return await asyncio.to_thread(call, own)
    except asyncio.CancelledError:
        cancel.set()
        raise


async def streamed_in_thread(
    call: Callable[[Request], Generator[T, None, None]], request: Request
) -> AsyncGenerator[T, None]:
    """An asynchronous generator of what ``call(request)`` yields.

    The generation starts, and is refused, here; leaving the generator early ends it.
    """
    cancel = threading.Event()
    own = Request(request.prompt, {"cancel": cancel, **request.options})
    responses = await asyncio.to_thread(call, own)

    async def follow() -> AsyncGenerator[T, None]:
        try:
            while True:
                item: Any = await asyncio.to_thread(next, responses, _END)
                if item is _END:
                    return
                yield item
        finally:
            cancel.set()

    return follow()
