"""Requests that wait for the model, and the thread that takes several of them through it at once.

Only requests of one method with equal options share forward passes. One thread does all of the
model's work: requests on one model take turns anyway.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from rag_middle.documents import Document
from rag_middle.errors import RagMiddleError
from rag_middle.generation import Follower, Generation, Prompt, RagMiddleModel, TokenLogProbability
from rag_middle.methods import Method
from rag_middle.serving.errors import ApiError
from rag_middle.serving.settings import ServerSettings

_log = logging.getLogger(__name__)
_MOST_PREPARED = 2  # requests at a time: chat templates and tokenizers take the interpreter

#: New text, and its tokens where log-probabilities were asked for; None: the answer has ended.
Piece = tuple[str, Sequence[TokenLogProbability]] | None


@dataclass(slots=True, kw_only=True, eq=False)
class AnswerJob:
    """One answer to be generated.

    Attributes:
        index: 0-based, among those of its request.
        documents: of the request, with the client's ids.
        response_fields: of ``rag_middle`` in the response, beside those of the answer.
        prompt: in tokens; as the request has it where the method rewrites it.
        group: jobs of one group may go through the model together.
        options: of `RagMiddleModel.batch`, all but the seed.
        streams: whether text is handed on as it comes, and not all at the end.
        emit: called with each piece, in the thread of the model.
        cancel: when set, the job ends, or does not begin.
    """

    index: int
    documents: Sequence[Document]
    response_fields: Mapping[str, Any]
    prompt: Prompt
    method: Method
    group: str
    options: Mapping[str, Any]
    seed: int
    streams: bool
    emit: Callable[[AnswerJob, Piece], None]
    cancel: threading.Event = field(default_factory=threading.Event)
    has_begun: bool = False
    result: Generation | BaseException | None = None

    def add(self, text: str, tokens: Sequence[TokenLogProbability]) -> None:
        """Hand on what the model writes."""
        if self.streams:  # else each piece would wake the loop, which takes the interpreter
            self.has_begun = True
            self.emit(self, (text, tokens))

    def end(self, result: Generation | BaseException) -> None:
        """Tell what became of it, once."""
        if self.result is None:
            self.result = result
            self.emit(self, None)


Event = tuple[AnswerJob, Piece]


class BatchQueue:
    """A bounded queue in front of a model."""

    def __init__(self, model: RagMiddleModel, settings: ServerSettings) -> None:
        self._model = model
        self._settings = settings
        self.waiting: list[AnswerJob] = []
        self.running: list[AnswerJob] = []
        self._changed = threading.Condition()
        self._coming = 0  # requests that are being prepared, or wait for that
        self._preparing = asyncio.Semaphore(_MOST_PREPARED)
        self._most_open = 0  # jobs that waited or ran at the same time, since the last batch began
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="rag-middle-serving")

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """End what runs after the token under way, and forget what waits."""
        with self._changed:
            self._is_closed = True
            for job in (*self.waiting, *self.running):
                job.cancel.set()
            self._changed.notify()
        self._thread.join()

    @property
    def is_serving(self) -> bool:
        """Whether somebody does the jobs."""
        return self._thread.is_alive()

    async def submit(
        self, prepare: Callable[[], Sequence[AnswerJob]], is_gone: Callable[[], Awaitable[bool]]
    ) -> Sequence[AnswerJob]:
        """Have the jobs done that `prepare` makes in a thread, all of them or none.

        Raises:
            ApiError: status 429, there is no room for them now.
            ClientDisconnect: nobody waits for them, says `is_gone`.
        """
        with self._changed:
            self._check_room(self._coming + 1)
            self._coming += 1
        try:
            async with self._preparing:
                if await is_gone():
                    raise ClientDisconnect
                jobs = await run_in_threadpool(prepare)
            with self._changed:
                self._check_room(len(jobs))
                self.waiting += jobs
                running = sum(job.result is None for job in self.running)
                self._most_open = max(self._most_open, len(self.waiting) + running)
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify()
        return jobs

    def _check_room(self, more: int) -> None:
        self.waiting = [job for job in self.waiting if not job.cancel.is_set()]
        most = self._settings.max_waiting
        if len(self.waiting) + more > most:
            message = f"More than {most} answers would wait. Try again in a few seconds."
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "2"})

    def _serve(self) -> None:
        while True:
            with self._changed:
                self.running = self._next_batch()
            if not self.running:
                return
            self._run(self.running)
            self.running = []

    def _next_batch(self) -> list[AnswerJob]:
        """Jobs that share a batch with the one that waits longest; none when closed."""
        while not self._is_closed:
            self._changed.wait_for(lambda: self.waiting or self._is_closed)
            # From when the model was free: clients that just got their answers may ask again.
            self._changed.wait_for(self._are_all_here, self._settings.batch_wait)
            self.waiting = [job for job in self.waiting if not job.cancel.is_set()]
            self._most_open = len(self.waiting)
            if self.waiting:
                alike = [job for job in self.waiting if job.group == self.waiting[0].group]
                batch = alike[: self._settings.max_batch_size]
                self.waiting = [job for job in self.waiting if job not in batch]
                return batch
        return []

    def _are_all_here(self) -> bool:
        """Whether a batch is full, or nobody else is known who could join it."""
        wanted = min(self._most_open, self._settings.max_batch_size)
        return self._is_closed or (not self._coming and len(self.waiting) >= wanted)

    def _run(self, jobs: Sequence[AnswerJob]) -> None:
        try:
            self._model.batch(
                [job.prompt for job in jobs],
                method=jobs[0].method,
                max_batch_size=len(jobs),
                followers=[Follower(on_text=j.add, on_end=j.end, cancel=j.cancel) for j in jobs],
                seed=[job.seed for job in jobs],
                **jobs[0].options,
            )
        except BaseException as error:  # a panic of an engine in Rust is no Exception
            # One prompt that is refused, or takes the memory, must not take the others with it.
            again = [j for j in jobs if len(jobs) > 1 and not j.has_begun and j.result is None]
            if not again and not isinstance(error, RagMiddleError):
                _log.error("A batch of %d failed.", len(jobs), exc_info=error)
            for job in jobs:
                if job in again:
                    self._run([job])
                else:
                    job.end(error)
