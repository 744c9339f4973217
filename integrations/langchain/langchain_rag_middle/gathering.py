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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rag_middle import RagMiddleError
from rag_middle.threads import in_thread

if TYPE_CHECKING:
    from rag_middle import Generation


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the options of `RagMiddleModel.generate` for it, with ``n``."""

    prompt: Any
    options: dict[str, Any]


@dataclass(slots=True)
class _Waiting:
    request: Request
    future: Future[list[Generation]] = field(default_factory=Future)


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
            for waiting in self._waiting:
                if not waiting.future.done():
                    waiting.future.set_exception(CancelledError())

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block makes one of the calls."""
        place = _Place(self)
        token = _place.set(place)
        try:
            yield
        finally:
            _place.reset(token)
            place.leave(None)

    @staticmethod
    def submit(owner: object, request: Request) -> Future[list[Generation]] | None:
        """Wait with the other calls of this batch; None where this call is in no batch."""
        place = _place.get()
        if place is None or place.gathering.owner is not owner:
            return None
        waiting = _Waiting(request)
        return waiting.future if place.leave(waiting) else None

    def _arrived(self, waiting: _Waiting | None) -> None:
        with self._lock:
            if waiting is not None:
                self._waiting.append(waiting)
                if self._cancel.is_set():
                    waiting.future.set_exception(CancelledError())
            self._missing -= 1
            if not self._missing and not self._complete.done():
                self._complete.set_result(None)

    def _run_all(self) -> None:
        # A call may have been cancelled while it waited; from here on none can be.
        waiting = [each for each in self._waiting if not each.future.done()]
        rest = [each for each in waiting if each.future.set_running_or_notify_cancel()]
        # One batch, unless calls differ in their options (as copies of the model may), by their
        # spelling: in schemas, 1 and True are equal and mean different answers.
        alike: dict[str, list[_Waiting]] = {}
        for each in rest:
            alike.setdefault(repr(each.request.options), []).append(each)
        for together in alike.values():
            self._run_together(together, together[0].request.options)

    def _run_together(self, waiting: Sequence[_Waiting], options: dict[str, Any]) -> None:
        try:
            prompts = [each.request.prompt for each in waiting]
            generations = self._run(prompts, self._cancel, options)
            if self._cancel.is_set():  # half an answer must not get into a cache
                raise CancelledError
        except RagMiddleError as error:
            if len(waiting) == 1:
                waiting[0].future.set_exception(error)
                return
            # Refused before anything ran. Halving finds the prompts that are at fault; the others
            # still go together.
            half = len(waiting) // 2
            self._run_together(waiting[:half], options)
            self._run_together(waiting[half:], options)
        except BaseException as error:
            for each in waiting:
                if not each.future.done():
                    each.future.set_exception(error)
        else:
            for each, generation in zip(waiting, generations, strict=True):
                each.future.set_result(generation)


class _Place:
    """One call of a gathering."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self._left = False

    def leave(self, waiting: _Waiting | None) -> bool:
        """Say that nobody needs to wait for this call any longer; False if that was said."""
        if self._left:
            return False
        self._left = True
        self.gathering._arrived(waiting)
        return True


_place: ContextVar[_Place | None] = ContextVar("rag_middle_place", default=None)
