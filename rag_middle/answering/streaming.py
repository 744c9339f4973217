"""An answer that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from rag_middle.answering.results import Answer, Source
from rag_middle.documents import ContextPrompt
from rag_middle.generation import Generation, GenerationStream

__all__ = ["AnswerStream"]


class AnswerStream(Iterator[str]):
    """Pieces of an answer's text as they come; `result` afterwards.

    ::

        with answerer.stream("On which river does Nantes lie?") as pieces:
            for piece in pieces:
                print(piece, end="", flush=True)
        print(pieces.result.cited)

    Leaving the ``with`` block, `close`, or forgetting the stream ends the generation after the
    token under way; `result` is then what there was until then.

    Attributes:
        sources: what was found, before anything is written; nothing is cited yet.
        prompt: as in `Answer`.
    """

    def __init__(
        self,
        pieces: GenerationStream,
        *,
        sources: tuple[Source, ...],
        prompt: ContextPrompt,
        finished: Callable[[Generation], Answer],
    ) -> None:
        self.sources = sources
        self.prompt = prompt
        self._pieces = pieces
        self._finished = finished

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def result(self) -> Answer:
        """The whole answer; waits for its end. Unread pieces are skipped."""
        return self._finished(self._pieces.result)

    def close(self) -> None:
        """End the generation after the token under way. Any thread may call."""
        self._pieces.close()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
