"""Texts that are still being written, and who follows them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from rag_middle.generation.results import Generation, TokenLogProbability
from rag_middle.threads import ModelThread

#: ``work(emit, stopped)``: calls `emit` with new text, ends early once `stopped` is set.
Work = Callable[[Callable[[str], None], threading.Event], Generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What is done with one prompt of a batch while the others run.

    The calls come from the thread that generates, which waits for them.

    Attributes:
        on_text: called with new text, and with the tokens since the last call where ``logprobs``
            asks for them; either may be empty, not both.
        on_end: called once, when the text of this prompt has ended; others may go on.
        cancel: when set, by any thread, this prompt ends after the token under way.
    """

    on_text: Callable[[str, Sequence[TokenLogProbability]], None]
    on_end: Callable[[Generation], None] = lambda _: None
    cancel: threading.Event = field(default_factory=threading.Event)


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

    Attributes:
        document_ids: as in `Generation`, known before the first piece.
    """

    def __init__(self, work: Work, *, document_ids: tuple[str | None, ...] = ()) -> None:
        self.document_ids = document_ids
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
        weakref.finalize(self, self._stopped.set)

    def __iter__(self) -> GenerationStream:
        return self

    def __next__(self) -> str:
        with self._reading:
            if self._ended is None:
                if self._thread.ident is None:  # not started
                    self._thread.start()
                try:
                    item = self._queue.get()
                except BaseException:  # an interrupt while waiting
                    self._stopped.set()
                    raise
                if isinstance(item, str):
                    return item
                self._ended = item
                self._thread.join()
        if isinstance(self._ended, BaseException):
            raise self._ended
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
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(
    work: Work,
    queue: SimpleQueue[str | Generation | BaseException],
    stopped: threading.Event,
) -> None:
    try:
        queue.put(work(queue.put, stopped))
    except BaseException as error:
        queue.put(error)
