"""Calls at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

__all__ = ["CallThreads"]


class CallThreads:
    """Runs calls that wait for each other.

    An executor will not do: where the system has no thread left, it keeps the call that it could
    not start in its queue, for a thread that may wait for just this call.

    Attributes:
        results: of the calls that were started, in order.
    """

    def __init__(self) -> None:
        self.results: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []

    def start(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """Begin a call in a copy of this thread's context; False where no thread can be had."""
        result: Future[Any] = Future()
        thread = threading.Thread(
            target=copy_context().run,
            args=(_fulfil, result, call, *arguments),
            name="rag-middle-call",
        )
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads.append(thread)
        self.results.append(result)
        return True

    def join(self) -> None:
        """Wait until all calls have ended."""
        for thread in self._threads:
            thread.join()


def _fulfil(result: Future[Any], call: Callable[..., Any], *arguments: Any) -> None:
    try:
        result.set_result(call(*arguments))
    except BaseException as error:
        result.set_exception(error)
