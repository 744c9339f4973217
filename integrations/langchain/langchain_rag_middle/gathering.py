"""Calls that run at the same time, put through the model together.

LangChain's ``batch`` makes one call per input, each with its callbacks, its cache look-up and its
turn with the rate limiter. That stays so here; only the generation waits until every call of the
batch has come to that point, or has ended without. Then all prompts share forward passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from rag_middle import RagMiddleError
from rag_middle.plain_data import are_identical
from rag_middle.threads import ModelThread

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
    """Waits for the requests of several calls.

    Args:
        calls: that will be made inside `call`, at the same time.
        run: generates for several prompts, ``n`` texts for each.
        owner: the model whose calls these are.
        served: `serve` will be called; a thread of its own generates otherwise.
    """

    def __init__(self, calls: int, run: Run, owner: object, *, served: bool = False) -> None:
        self._run = run
        self.owner = owner
        self._missing = calls
        self._served = served
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self.cancel = threading.Event()

    def serve(self) -> None:
        """Wait for every call, then generate in this thread.

        A second thread that computes on the CPU brings a second set of helpers (OpenMP), and both
        sets are slow from then on.
        """
        try:
            self._complete.wait()
            self._run_all()
        except BaseException:  # an interrupt, say
            self.abandon()
            raise

    def withdraw(self, calls: int) -> None:
        """So many of the calls will not be made after all: nobody need wait for them."""
        if calls:
            self._arrived(None, calls)

    def abandon(self) -> None:
        """Cancel the calls that wait and those that come: nobody may wait for what will not come.

        For one that is served.
        """
        with self._lock:
            self.cancel.set()
        self._refuse(CancelledError())

    @contextmanager
    def call(self) -> Iterator[None]:
        """The block makes one of the calls."""
        place = _Place(self)
        token = _place.set(place)
        try:
            yield
        finally:
            _place.reset(token)
            place.leave()

    @staticmethod
    @contextmanager
    def apart() -> Iterator[None]:
        """What the block calls waits for no other call."""
        token = _place.set(None)
        try:
            yield
        finally:
            _place.reset(token)

    @staticmethod
    def submit(owner: object, request: Request) -> Future[list[Generation]] | None:
        """Wait with the other calls of this batch; None where this call is in no batch."""
        place = _place.get()
        if place is None or place.gathering.owner is not owner or not place.leave(request):
            return None
        assert place.waiting is not None
        return place.waiting.future

    def _arrived(self, waiting: _Waiting | None, calls: int = 1) -> None:
        with self._lock:
            if waiting is not None:
                self._waiting.append(waiting)
                if self.cancel.is_set() and self._served:
                    waiting.future.set_exception(CancelledError())
            self._missing -= calls
            if self._missing:
                return
            self._complete.set()
        if not self._waiting or self._served:
            return
        try:
            run = partial(copy_context().run, self._run_all)  # it knows where the call came from
            ModelThread(run, name="rag-middle-batch", stop=self.cancel.set).start()
        except RuntimeError as error:  # the system has no thread left
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for each in waiting:
            if not each.future.done():
                each.future.set_exception(error)

    def _run_all(self) -> None:
        # A call may have been cancelled while it waited; from here on none can be.
        waiting = [w for w in self._waiting if not w.future.done()]
        rest = [w for w in waiting if w.future.set_running_or_notify_cancel()]
        # One batch, unless calls differ in their options (as copies of the model may).
        while rest:
            options = rest[0].request.options
            alike = [are_identical(each.request.options, options) for each in rest]
            self._run_together(list(compress(rest, alike)), options)
            rest = [each for each, is_alike in zip(rest, alike, strict=True) if not is_alike]

    def _run_together(self, waiting: Sequence[_Waiting], options: dict[str, Any]) -> None:
        try:
            prompts = [each.request.prompt for each in waiting]
            generations = self._run(prompts, self.cancel, options)
            if self.cancel.is_set():  # half an answer must not get into a cache
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
                each.future.set_exception(error)
        else:
            for each, generation in zip(waiting, generations, strict=True):
                each.future.set_result(generation)


class _Place:
    """One call of a gathering."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.waiting: _Waiting | None = None
        self._left = False

    def leave(self, request: Request | None = None) -> bool:
        """Say that nobody needs to wait for this call any longer; False if that was said."""
        if self._left:
            return False
        self._left = True
        self.waiting = None if request is None else _Waiting(request)
        self.gathering._arrived(self.waiting)
        return True


_place: ContextVar[_Place | None] = ContextVar("rag_middle_place", default=None)


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
