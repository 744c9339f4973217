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
from rag_middle.integration import in_thread

if TYPE_CHECKING:
    from rag_middle import Generation


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the options of `RagMiddleModel.generate` for it, with ``n``."""

    prompt: Any
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    answers: Future[list[Generation]] = field(default_factory=Future)


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
                if not waiting.answers.done():
                    waiting.answers.set_exception(CancelledError())

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block makes one of the calls."""
        call = _Call(self)
        token = _current_call.set(call)
        try:
            yield
        finally:
            _current_call.reset(token)
            call.arrive(None)

    @staticmethod
    def submit(owner: object, request: Request) -> Future[list[Generation]] | None:
        """Wait with the other calls of this batch; None where this call is in no batch."""
        call = _current_call.get()
        if call is None or call.gathering.owner is not owner:
            return None
        waiting = _Waiting(request)
        return waiting.answers if call.arrive(waiting) else None

    def _arrived(self, waiting: _Waiting | None) -> None:
        with self._lock:
            if waiting is not None:
                self._waiting.append(waiting)
                if self._cancel.is_set():
                    waiting.answers.set_exception(CancelledError())
            self._missing -= 1
            if not self._missing and not self._complete.done():
                self._complete.set_result(None)

    def _run_all(self) -> None:
        # One batch, unless calls differ in their options (as copies of the model may), by their
        # spelling: in schemas, 1 and True are equal and mean different answers.
        alike: dict[str, list[_Waiting]] = {}
        for waiting in self._waiting:
            # A call may have been cancelled while it waited; from here on none can be.
            if not waiting.answers.done() and waiting.answers.set_running_or_notify_cancel():
                alike.setdefault(repr(waiting.request.options), []).append(waiting)
        for together in alike.values():
            self._run_together(together)

    def _run_together(self, alike: Sequence[_Waiting]) -> None:
        prompts = [waiting.request.prompt for waiting in alike]
        try:
            generations = self._run(prompts, self._cancel, alike[0].request.options)
            if self._cancel.is_set():  # half an answer must not get into a cache
                raise CancelledError
        except RagMiddleError as error:
            if len(alike) == 1:
                alike[0].answers.set_exception(error)
                return
            # Refused before anything ran. Halving finds the prompts that are at fault; the others
            # still go together.
            half = len(alike) // 2
            self._run_together(alike[:half])
            self._run_together(alike[half:])
        except BaseException as error:
            for waiting in alike:
                if not waiting.answers.done():
                    waiting.answers.set_exception(error)
        else:
            for waiting, texts in zip(alike, generations, strict=True):
                waiting.answers.set_result(texts)


class _Call:
    """One call of a gathering, which waits for it until it arrives."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self._has_arrived = False

    def arrive(self, waiting: _Waiting | None) -> bool:
        """Come with a request, or end without one; False where the call had arrived before."""
        if self._has_arrived:
            return False
        self._has_arrived = True
        self.gathering._arrived(waiting)
        return True


#: The call under way; threads and tasks that it starts see it too.
_current_call: ContextVar[_Call | None] = ContextVar("rag_middle_call", default=None)
