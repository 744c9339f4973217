"""Calls that take their time, kept off the event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TypeVar

from llama_index.llms.rag_middle.requests import Request

from rag_middle import asynchronous

__all__ = ["in_thread", "streamed_in_thread"]

T = TypeVar("T")


async def in_thread(call: Callable[[Request], T], request: Request) -> T:
    """``call(request)`` in a thread. Cancelling the task ends the generation after its token."""

    def cancellable(cancel: threading.Event) -> T:
        # A caller's own event may serve other requests too and is not ours to set.
        return call(Request(request.prompt, {"cancel": cancel, **request.options}))

    return await asynchronous.in_thread(cancellable)


async def streamed_in_thread(
    call: Callable[[Request], Generator[T, None, None]], request: Request
) -> AsyncGenerator[T, None]:
    """An asynchronous generator of what ``call(request)`` yields.

    The generation starts, and is refused, here; leaving the generator early ends it.
    """
    return asynchronous.pieces_in_thread(await in_thread(call, request))
