"""What LlamaIndex does around calls of the LLM: answers without a call, and histories."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from llama_index.core.base.response.schema import Response
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from rag_middle import unmark

#: Between this package and who calls an LLM.
_PLUMBING = ("llama_index.llms.rag_middle", "llama_index.core.llms", "llama_index_instrumentation")


class SynthesisHandler(BaseEventHandler):
    """Takes the markers off responses: ``context_only`` answers as a model would read nodes."""

    @classmethod
    def class_name(cls) -> str:
        return "RagMiddleSynthesisHandler"

    def handle(self, event: BaseEvent, **_: Any) -> None:
        if isinstance(event, SynthesizeEndEvent):
            response = event.response
            if isinstance(response, Response) and response.response:
                response.response = unmark(response.response)


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
