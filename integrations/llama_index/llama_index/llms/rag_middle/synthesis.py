"""One answer from nodes: what its calls reported, and no markers in what a user reads.

LlamaIndex's synthesizers hand a response out without what the LLM told about its calls, and
``context_only`` hands out the text of the nodes as a model would read it. Its events of a synthesis
carry the response itself, whichever engine asked for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.events.span import SpanDropEvent

from rag_middle import unmark

#: Between this package and who calls an LLM.
_PLUMBING = ("llama_index.llms.rag_middle", "llama_index.core.llms", "llama_index_instrumentation")

#: Where ``response.metadata`` has the report.
METADATA_KEY = "rag_middle"
_END: Any = object()


@dataclass(slots=True)
class Synthesis:
    """An answer that is being written from nodes.

    Attributes:
        span_id: LlamaIndex's name for it.
        report: ``method``, ``applied`` (in some call), ``documents`` (the most in one call) and
            ``calls``, the reports of all calls in order. A stream's call is added when it ends.
    """

    span_id: str | None
    report: dict[str, Any] = field(default_factory=dict)
    _response: Any = None

    def add(self, call: Mapping[str, Any]) -> None:
        """The report of a call that has ended."""
        calls = [*self.report.get("calls", ()), dict(call)]
        self.report.update(
            method=call["method"],
            applied=any(report["applied"] for report in calls),
            documents=max(report["documents"] for report in calls),
            calls=calls,
        )
        self._tell()

    def complete(self, response: Any) -> None:
        """The response is there; of a stream, the calls are still to come."""
        self._response = response
        self._tell()
        if isinstance(response, StreamingResponse):
            response.response_gen = self._followed(response.response_gen)
        elif isinstance(response, AsyncStreamingResponse):
            response.response_gen = self._followed_async(response.response_gen)

    def _tell(self) -> None:
        if self._response is not None and self.report:
            metadata = self._response.metadata or {}
            self._response.metadata = {**metadata, METADATA_KEY: self.report}

    def _followed(self, pieces: Any) -> Any:
        """A stream whose calls, which begin as it is read, still belong to this answer."""
        context = copy_context()
        context.run(_running.set, (*_running.get(), self))
        return iter(partial(context.run, next, pieces, _END), _END)

    async def _followed_async(self, pieces: Any) -> AsyncGenerator[Any, None]:
        async def following() -> Any:
            _running.set((*_running.get(), self))
            return await anext(pieces, _END)

        # A task of its own: what is set in it stays out of the reader's context.
        while (piece := await asyncio.create_task(following())) is not _END:
            yield piece


#: The outermost first: an engine may ask other engines while it answers.
_running: ContextVar[tuple[Synthesis, ...]] = ContextVar("rag_middle_syntheses", default=())


def current_synthesis() -> Synthesis | None:
    """The answer from nodes in whose course this is called."""
    running = _running.get()
    return running[-1] if running else None


class SynthesisHandler(BaseEventHandler):
    """Follows the beginning and the end of every synthesis."""

    @classmethod
    def class_name(cls) -> str:
        return "RagMiddleSynthesisHandler"

    def handle(self, event: BaseEvent, **_: Any) -> None:
        if isinstance(event, SynthesizeStartEvent):
            _running.set((*_running.get(), Synthesis(event.span_id)))
        elif isinstance(event, SynthesizeEndEvent | SpanDropEvent):
            ended = _end(event.span_id)
            if isinstance(event, SynthesizeEndEvent):
                response = event.response
                if isinstance(response, Response) and response.response:
                    response.response = unmark(response.response)
                if ended is not None:
                    ended.complete(response)


def called_by_memory() -> bool:
    """Whether one of LlamaIndex's memories calls the LLM now, to summarise a history."""
    return _calling_module().startswith("llama_index.core.memory")


def _calling_module() -> str:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(_PLUMBING) and module not in ("contextlib", "wrapt.decorators"):
            return module
        frame = frame.f_back
    return ""


def watch_syntheses() -> None:
    """Have LlamaIndex's dispatcher tell about every synthesis; once per process."""
    dispatcher = get_dispatcher()
    if not any(isinstance(handler, SynthesisHandler) for handler in dispatcher.event_handlers):
        dispatcher.add_event_handler(SynthesisHandler())


def _end(span_id: str | None) -> Synthesis | None:
    running = _running.get()
    at = next((i for i, synthesis in enumerate(running) if synthesis.span_id == span_id), None)
    if at is None:
        return None
    _running.set(running[:at])  # those inside it that never ended as well
    return running[at]
