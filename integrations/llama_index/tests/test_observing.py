"""What LlamaIndex's observers see: events, callbacks, token counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import (
    CallbackManager,
    CBEventType,
    LlamaDebugHandler,
)
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from llama_index.llms.rag_middle import MarkDocuments, RagMiddleLLM

if TYPE_CHECKING:
    from conftest import MakeLLM


class Recorder(BaseEventHandler):
    """Keeps every event."""

    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        self.seen.append(event)

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.seen]


@pytest.fixture
def events() -> Iterator[Recorder]:
    recorder, dispatcher = Recorder(), get_dispatcher()
    dispatcher.add_event_handler(recorder)
    yield recorder
    dispatcher.event_handlers.remove(recorder)


@pytest.mark.parametrize("call", ["complete", "chat", "acomplete", "achat"])
def test_each_call_is_one_pair_of_events(llm: RagMiddleLLM, events: Recorder, call: str) -> None:
    prompt: Any = [ChatMessage(content="Hello")] if "chat" in call else "Hello"
    answered = getattr(llm, call)(prompt)
    response = asyncio.run(answered) if call.startswith("a") else answered
    kind = "LLMChat" if "chat" in call else "LLMCompletion"
    assert events.names == [f"{kind}StartEvent", f"{kind}EndEvent"]
    assert events.seen[0].model_dict["method"] == "none"
    assert events.seen[0].model_dict["context_window"] == 4096
    assert events.seen[1].response.raw == response.raw


def test_callbacks_see_the_calls_of_a_query_engine(
    make_llm: MakeLLM, use: Callable[..., None], index: VectorStoreIndex, question: str
) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    use(make_llm(method="pine"))
    Settings.callback_manager = CallbackManager([debug])
    engine = index.as_query_engine(similarity_top_k=6, node_postprocessors=[MarkDocuments()])
    engine.query(question)
    [(start, end)] = debug.get_event_pairs(CBEventType.LLM)
    assert start.payload["serialized"]["method"] == "pine"
    assert end.payload["response"].raw["rag_middle"]["documents"] == 6
