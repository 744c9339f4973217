"""Chat engines of every mode: whole documents in each call, also in later turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.rag_middle import MarkDocuments

if TYPE_CHECKING:
    from conftest import MakeLLM, Use


MODES = ("context", "condense_plus_context", "condense_question", "best")
#: Documents of the calls of a first and of a second turn; condensing a question reads none.
TURNS = {
    "context": ([6], [6]),
    "condense_plus_context": ([6], [0, 6]),
    "condense_question": ([6], [0, 6]),
    "best": ([6], [0, 6]),
}


def engine_of(mode: str, index: VectorStoreIndex, marker: Any, **options: Any) -> BaseChatEngine:
    return index.as_chat_engine(
        chat_mode=mode,
        similarity_top_k=6,
        node_postprocessors=[marker],
        memory=ChatMemoryBuffer.from_defaults(token_limit=3000),
        **options,
    )


def counts(calls: list) -> list[int]:
    return [call.documents for call in calls]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.one_in(3)
def test_each_turn_gets_whole_documents(
    mode: str, make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str, calls: list
) -> None:
    use(make_llm(method="pine", on_missing_documents="ignore"))
    engine = engine_of(mode, index, MarkDocuments())
    first, second = TURNS[mode]

    answer = engine.chat(question)
    assert counts(calls) == first
    assert str(answer).strip()
    calls.clear()
    engine.chat("And Lyon?")
    assert counts(calls) == second
    assert all("rm:doc" not in n.node.get_content() for n in answer.source_nodes)
    assert all("rm:doc" not in (m.content or "") for m in engine.chat_history)
