"""Requests that wait for the model, and the thread that takes several of them through it at once.

Only requests of one method with equal options share forward passes. One thread does all of the
model's work: requests on one model take turns anyway.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rag_middle.errors import RagMiddleError
from rag_middle.generation import (
    Follower,
    Generation,
    Prompt,
    RagMiddleModel,
    TokenLogProbability,
)
from rag_middle.methods import Method
from rag_middle.plain_data import are_identical
from rag_middle.serving.errors import ApiError
from rag_middle.serving.metrics import Metrics
from rag_middle.threads import ModelThread

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, and its tokens where log-probabilities were asked for."""

    text: str
    tokens: Sequence[TokenLogProbability]


#: What a job emits: pieces, and at the end a `Generation` or an exception.
Event = Piece | Generation | BaseException


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One answer to be generated.

    Attributes:
        prompt: in tokens, as the request has its documents; as text where the method rewrites it.
        method: name and method.
        options: of `RagMiddleModel.batch`, all but the seed.
        seed: of sampling; None: one is drawn.
        alternatives: as of `Follower`.
        streams: whether text is handed on as it comes, and not all at the end.
        emit: called with each event, in the thread of the model.
        cancel: when set, the job ends, or does not begin.
        arrived: clock time.
    """

    prompt: Prompt
    method: tuple[str, Method]
    options: Mapping[str, Any]
    seed: int
    alternatives: int | None
    streams: bool
    emit: Callable[[Event], None]
    cancel: threading.Event = field(default_factory=threading.Event)
    arrived: float = field(default_factory=time.monotonic)
    has_text: bool = False
    has_ended: bool = False
    tokens: list[TokenLogProbability] = field(default_factory=list)

    @property
    def is_constrained(self) -> bool:
        """Whether the answer has to be of a form."""
        choice = self.options.get("tool_choice", "auto")
        return "response_format" in self.options or choice not in ("auto", "none")

    @property
    def can_begin_again(self) -> bool:
        """Whether nothing of its answer was sent to the client yet."""
        return not self.has_ended and not (self.streams and self.has_text)

    def begin_again(self) -> None:
        """Forget what was generated so far."""
        self.has_text = False
        self.tokens.clear()

    def shares_batch_with(self, other: Job) -> bool:
        """Whether both may go through the model together."""
        # The engine may fail at one text of a form, for all of its batch. Others begin again then:
        # what was sent already cannot.
        if self is not other and self.is_constrained and (self.streams or other.streams):
            return False
        try:
            return self.method[0] == other.method[0] and are_identical(self.options, other.options)
        except RecursionError:  # a client's nesting must not end the thread of the model
            return self is other

    def follower(self) -> Follower:
        """Hands on what the model writes."""
        return Follower(
            on_text=self._text, on_end=self.end, cancel=self.cancel, alternatives=self.alternatives
        )

    def end(self, result: Generation | BaseException) -> None:
        """The last event, once."""
        if not self.has_ended:
            self.has_ended = True
            if self.tokens:
                self.emit(Piece("", self.tokens))
            self.emit(result)

    def _text(self, text: str, tokens: Sequence[TokenLogProbability]) -> None:
        self.has_text = True
        if self.streams:
            self.emit(Piece(text, tokens))
        else:  # each event wakes the loop, which takes the interpreter from the model
            self.tokens += tokens


class BatchQueue:
    """A bounded queue in front of a model.

    Args:
        model: that answers.
        max_batch_size: jobs in one forward pass.
        max_waiting: jobs that may wait; those that run do not count.
        batch_wait: seconds that a free model waits for more jobs, once there is one; it waits for
            no more of them than were there at the same time since the last batch began.
        metrics: where sizes and times are noted.
    """

    def __init__(
        self,
        model: RagMiddleModel,
        *,
        max_batch_size: int,
        max_waiting: int,
        batch_wait: float,
        metrics: Metrics,
    ) -> None:
        self._model = model
        self._max_batch_size = max_batch_size
        self._max_waiting = max_waiting
        self._batch_wait = batch_wait
        self._metrics = metrics
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._batch_seconds = 1.0  # moving average
        self._free_since = 0.0
        self._coming = 0
        self._most_open = 0  # jobs that waited or ran at the same time, since the last batch began
        self._thread = ModelThread(self._serve, name="rag-middle-serving", stop=self.cancel_all)
        metrics.watch_queue(lambda: len(self._waiting), lambda: len(self._running))

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def is_serving(self) -> bool:
        """Whether jobs are taken, and there is somebody to do them."""
        return self._thread.is_alive() and not self._closed

    @property
    def has_room(self) -> bool:
        """Whether one more job can wait."""
        return len(self._waiting) < self._max_waiting

    @contextmanager
    def coming(self) -> Iterator[None]:
        """The block prepares jobs, which a batch may wait for."""
        with self._changed:
            self._coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify_all()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Have jobs done, all of them or none.

        Raises:
            ApiError: status 429, there is no room for them now; 400, there never is; or 503, the
                server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise _shutting_down()
            self._waiting = [job for job in self._waiting if not job.cancel.is_set()]
            if len(jobs) > self._max_waiting:
                raise ApiError(
                    400,
                    f"The request asks for {len(jobs)} answers, and no more than "
                    f"{self._max_waiting} can wait here. Send several requests.",
                    param="n",
                )
            if len(self._waiting) + len(jobs) > self._max_waiting:
                batches = math.ceil(len(self._waiting) / self._max_batch_size)
                seconds = max(1, math.ceil(batches * self._batch_seconds))
                self._metrics.refused.inc()
                raise ApiError(
                    429,
                    f"{len(self._waiting)} answers wait for the model already, and there is room "
                    f"for {self._max_waiting}. Try again in {seconds} seconds.",
                    code="queue_full",
                    headers={"Retry-After": str(seconds)},
                )
            self._waiting += jobs
            running = sum(not job.has_ended for job in self._running)
            self._most_open = max(self._most_open, len(self._waiting) + running)
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Take no more jobs, and wait for those that were taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def cancel_all(self) -> None:
        """Take no more jobs; end what runs after the token under way, and what waits."""
        with self._changed:
            self._closed = True
            for job in (*self._waiting, *self._running):
                job.cancel.set()
            for job in self._waiting:  # no batch will, and somebody waits for an event
                job.end(_shutting_down())
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while jobs := self._next_batch():
                self._run(jobs)
        finally:
            self._closed = True
            for job in (*self._running, *self._waiting):
                job.end(RuntimeError("The thread that runs the model has ended."))

    def _next_batch(self) -> list[Job]:
        """Jobs that share a batch with the one that waits longest; none: the queue is closed."""
        with self._changed:
            self._running = []
            self._free_since = time.monotonic()
            while True:
                self._waiting = [job for job in self._waiting if not job.cancel.is_set()]
                if not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                batch = [job for job in self._waiting if job.shares_batch_with(first)]
                batch = batch[: self._max_batch_size]
                # Counted from when the model was free: clients that just got their answers may ask
                # again. Nobody waits for more clients than there were.
                are_all_here = self._coming == 0 and len(self._waiting) >= self._most_open
                is_full = are_all_here or len(batch) == self._max_batch_size
                waits_since = max(first.arrived, self._free_since)
                patience = waits_since + self._batch_wait - time.monotonic()
                if is_full or patience <= 0 or self._closed:
                    break
                self._changed.wait(patience)
            self._running = batch
            self._most_open = len(self._waiting)
            self._waiting = [job for job in self._waiting if job not in batch]
            return batch

    def _run(self, jobs: Sequence[Job]) -> None:
        started = time.monotonic()
        try:
            self._model.batch(
                [job.prompt for job in jobs],
                method=jobs[0].method[1],
                max_batch_size=len(jobs),
                followers=[job.follower() for job in jobs],
                seed=[job.seed for job in jobs],
                **jobs[0].options,
            )
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of an engine in Rust is no Exception
            # One prompt that is refused, or takes the memory, must not take the others with it. A
            # form is the same for all: reading it again for each half would keep everybody waiting.
            is_of_all = isinstance(error, RagMiddleError) and error.parameter == "response_format"
            again = [job for job in jobs if job.can_begin_again]
            if len(jobs) > 1 and again and not is_of_all:
                if sent := [job for job in jobs if not job.has_ended and job not in again]:
                    self._fail(sent, error)
                for job in again:
                    job.begin_again()
                half = len(again) // 2
                for part in (again[:half], again[half:]):
                    if part:
                        self._run(part)
                return
            self._fail(jobs, error)
        seconds = time.monotonic() - started
        self._batch_seconds += 0.2 * (seconds - self._batch_seconds)
        self._metrics.batch_size.observe(len(jobs))
        self._metrics.batch_seconds.observe(seconds)

    def _fail(self, jobs: Sequence[Job], error: BaseException) -> None:
        if not isinstance(error, RagMiddleError):
            _log.error("A batch of %d failed.", len(jobs), exc_info=error)
        for job in jobs:
            job.end(error)


def _shutting_down() -> ApiError:
    return ApiError(
        503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": "5"}
    )


def run_in_thread(work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises, run in a thread that ends with it.

    For what a server computes before it serves. On a CPU, every thread that runs PyTorch keeps
    OpenMP workers of its own for as long as it lives, and once a process has more of them than
    cores, all go to sleep at the end of every operation instead of waiting a moment for the next.
    A main thread that loaded the model and then only serves sockets made small models answer at
    half their speed.
    """
    future: Future[_Result] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    ModelThread(run, name="rag-middle-preparing").start()
    return future.result()
