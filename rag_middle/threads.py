"""Threads that run a model, and calls that take their time, kept off the event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_END: Any = object()
_END_SECONDS = 5.0  # for the token under way


class ModelThread(threading.Thread):
    """A daemon thread that is asked to end, and waited for, when the program ends.

    One that comes back to Python from PyTorch's C++ once the interpreter shuts down would abort
    the process (SIGABRT), and its exit status would be lost.

    Args:
        target: to be run.
        name: of the thread.
        stop: asks `target` to return soon.
    """

    def __init__(
        self, target: Callable[[], object], *, name: str, stop: Callable[[], object]
    ) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.stop = stop


@atexit.register
def _end_model_threads() -> None:
    running = [thread for thread in threading.enumerate() if isinstance(thread, ModelThread)]
    for thread in running:
        thread.stop()
    for thread in running:
        thread.join(_END_SECONDS)


async def in_thread(call: Callable[[threading.Event], T]) -> T:
    """``call(cancel)`` in a thread; cancelling the task sets `cancel`."""
    cancel = threading.Event()
    try:
        return await asyncio.to_thread(call, cancel)
    except asyncio.CancelledError:
        cancel.set()
        raise


async def pieces_in_thread(
    pieces: Generator[T, None, None], cancel: threading.Event
) -> AsyncGenerator[T, None]:
    """What a generator yields, each piece waited for in a thread.

    Leaving early, or cancelling the task, sets `cancel` and closes the generator, without waiting
    for that.

    Args:
        pieces: that take their time.
        cancel: ends what the generator waits for, which may be long in coming.
    """
    running = threading.Lock()

    def step() -> T:
        with running:
            return next(pieces, _END)

    def close() -> None:
        with running:  # a generator that is running cannot be closed
            pieces.close()

    try:
        while (piece := await asyncio.to_thread(step)) is not _END:
            yield piece
    except BaseException:
        cancel.set()
        # Not in the loop's executor, which may be closed. Without a thread the collector closes it.
        with suppress(RuntimeError):
            threading.Thread(target=close, name="rag-middle-closing", daemon=True).start()
        raise
