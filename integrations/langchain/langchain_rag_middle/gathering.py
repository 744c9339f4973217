"""Calls that run at the same time, put through the model together.

LangChain's ``batch`` makes one call per input, each with its callbacks, its cache look-up and its
turn with the rate limiter. That stays so here; only the generation waits until every call of the
batch has come to that point, or has ended without. Then all prompts share forward passes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rag_middle import RagMiddleError
from rag_middle.integration import in_thread

if TYPE_CHECKING:
    from rag_middle import Generation


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the options of `RagMiddleModel.generate` for it, with ``n``."""

    prompt: Any
    options: dict[str, Any]


_Waiting: TypeAlias = "tuple[Request, Future[list[Generation]]]"
#: ``run(prompts, cancel, options)``: results in order; raises for all if it refuses any.
Run = Callable[[Sequence[Any], threading.Event, dict[str, Any]], "list[list[Generation]]"]


class Gathering:
    """Waits for the requests of several calls; `serve` or `serve_async` answers them.

    Args:
        calls: that will be made inside `call`, at the same time.
        run: generates for several prompts, ``n`` texts for each.
        owner: the model whose calls these are.
    """

    def __init__(self, calls: int, run: Run, owner: object) -> None:
        self.owner = owner
        self._run = run
        self._missing = calls
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()
        self._complete: Future[None] = Future()
        self._cancel = threading.Event()

    def serve(self) -> None:
        """Wait for every call, then generate in this thread.

        A second thread that computes on the CPU brings a second set of helpers (OpenMP), and both
        sets are slow from then on.
        """
        self._complete.result()
        self._run_all()

    async def serve_async(self) -> None:
        """As `serve`, in another thread."""
        await asyncio.wrap_future(self._complete)
        await in_thread(lambda _: self._run_all())

    def abandon(self) -> None:
        """Cancel the calls that wait and those that come: nobody waits for what will not come."""
        with self._lock:
            self._cancel.set()
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(CancelledError())

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block makes one of the calls."""
        expecting = [self]
        token = _expecting.set(expecting)
        try:
            yield
        finally:
            _expecting.reset(token)
            if expecting:  # the call ended without a generation
                expecting.pop()._arrived(None)

    @staticmethod
    def submit(owner: object, request: Request) -> Future[list[Generation]] | None:
        """Wait with the other calls of this batch; None where this call is in no batch."""
        expecting = _expecting.get()
        if not expecting or expecting[0].owner is not owner:
            return None
        future: Future[list[Generation]] = Future()
        expecting.pop()._arrived((request, future))
        return future

    def _arrived(self, waiting: _Waiting | None) -> None:
        with self._lock:
            if waiting is not None:
                self._waiting.append(waiting)
                if self._cancel.is_set():
                    waiting[1].set_exception(CancelledError())
            self._missing -= 1
            if not self._missing and not self._complete.done():
                self._complete.set_result(None)

    def _run_all(self) -> None:
        # One batch, unless calls differ in their options (as copies of the model may), by their
        # spelling: in schemas, 1 and True are equal and mean different answers.
        alike: dict[str, list[_Waiting]] = {}
        for request, future in self._waiting:
            # A call may have been cancelled while it waited; from here on none can be.
            if not future.done() and future.set_running_or_notify_cancel():
                alike.setdefault(repr(request.options), []).append((request, future))
        for together in alike.values():
            self._run_together(together)

    def _run_together(self, waiting: Sequence[_Waiting]) -> None:
        prompts = [request.prompt for request, _ in waiting]
        try:
            generations = self._run(prompts, self._cancel, waiting[0][0].options)
            if self._cancel.is_set():  # half an answer must not get into a cache
                raise CancelledError
        except RagMiddleError as error:
            if len(waiting) == 1:
                waiting[0][1].set_exception(error)
                return
            # Refused before anything ran. Halving finds the prompts that are at fault; the others
            # still go together.
            half = len(waiting) // 2
            self._run_together(waiting[:half])
            self._run_together(waiting[half:])
        except BaseException as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), texts in zip(waiting, generations, strict=True):
                future.set_result(texts)


#: Holds the gathering that the call under way belongs to, until the call has come to its turn.
_expecting: ContextVar[list[Gathering] | None] = ContextVar("rag_middle_expecting", default=None)
