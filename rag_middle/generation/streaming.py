"""A text that is still being written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue

from rag_middle.generation.results import Generation
from rag_middle.threads import ModelThread

#: ``work(emit, stopped)``: calls `emit` with new text, ends early once `stopped` is set.
Work = Callable[[Callable[[str], None], threading.Event], Generation]

_ALIVE_CHECK_SECONDS = 1.0


class GenerationStream(Iterator[str]):
    """Pieces of text as they come; `result` afterwards.

    ::

        with model.stream(prompt) as stream:
            for piece in stream:
                print(piece, end="", flush=True)
        print(stream.result.usage)

    The pieces put together are ``result.text``. Generation runs in a thread of its own from the
    first piece on. What is raised there is raised here. Leaving the ``with`` block, `close`, or
    forgetting the stream ends the generation after the token under way. So does the end of the
    program, which waits a few seconds for that.

    Several threads may read: each piece comes to one of them, the end and `result` to all.

    Args:
        work: generates.
        document_ids: see below.
        check: called before the thread is started, by whoever reads first; may raise.

    Attributes:
        document_ids: as in `Generation`, known before the first piece.
    """

    def __init__(
        self,
        work: Work,
        *,
        document_ids: tuple[str | None, ...] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.document_ids = document_ids
        self._check = check
        self._reading = threading.Lock()
        self._queue: SimpleQueue[str | Generation | BaseException] = SimpleQueue()
        self._stopped = threading.Event()
        self._ended: Generation | BaseException | None = None
        # The thread knows the queue and the event, not the stream: a forgotten stream is collected
        # and takes the generation with it.
        self._thread = ModelThread(
            partial(_run, work, self._queue, self._stopped),
            name="rag-middle-stream",
            stop=self._stopped.set,
        )
        self._started = False
        self._start_lock = threading.Lock()
        weakref.finalize(self, self._stopped.set)

    def __iter__(self) -> GenerationStream:
        return self

    def __next__(self) -> str:
        with self._reading:
            return self._next()

    def _next(self) -> str:
        if isinstance(self._ended, BaseException):
            raise self._ended
        if self._ended is not None:
            raise StopIteration
        self._start()
        try:
            item = self._get()
        except BaseException:  # an interrupt while waiting
            self._stopped.set()
            raise
        if isinstance(item, str):
            return item
        self._ended = item
        self._thread.join()
        if isinstance(item, BaseException):
            raise item
        raise StopIteration

    @property
    def result(self) -> Generation:
        """The whole generation; waits for its end. Unread pieces are skipped.

        After `close` it is what there was until then, with the finish reason ``"cancelled"``.
        """
        for _ in self:
            pass
        assert isinstance(self._ended, Generation)
        return self._ended

    def close(self) -> None:
        """End the generation after the token under way, and wait for that. Any thread may call."""
        self._stopped.set()
        if self._started:
            self._thread.join()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._start_lock:
            if not self._started:
                self._check()
                self._thread.start()
                self._started = True

    def _get(self) -> str | Generation | BaseException:
        while True:
            try:
                return self._queue.get(timeout=_ALIVE_CHECK_SECONDS)
            except Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    return RuntimeError("The thread that generated the text died without a word.")


def _run(
    work: Work,
    queue: SimpleQueue[str | Generation | BaseException],
    stopped: threading.Event,
) -> None:
    try:
        queue.put(work(queue.put, stopped))
    except BaseException as error:
        queue.put(error)
