"""Chat engines of every mode: whole documents in each call, also in later turns."""

import asyncio
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import (
    ChatMemoryBuffer,
    ChatSummaryMemoryBuffer,
    FactExtractionMemoryBlock,
)
from llama_index.llms.rag_middle import MarkDocuments

from rag_middle import mark

#: Documents of the calls of a first and of a second turn; condensing a question reads none.
TURNS = {
    "context": ([6], [6]),
    "condense_plus_context": ([6], [0, 6]),
    "condense_question": ([6], [0, 6]),
    "best": ([6], [0, 6]),
}


def counts(sent: Any) -> list[int]:
    return [len(prompt.documents) for prompt in sent]


@pytest.mark.parametrize("mode", TURNS)
@pytest.mark.one_in(3)
def test_each_turn_gets_whole_documents(
    mode: str, make_llm: Any, use: Any, index: VectorStoreIndex, sent: Any
) -> None:
    use(make_llm(method="pine", on_missing_documents="ignore"))
    engine = index.as_chat_engine(
        chat_mode=mode,
        similarity_top_k=6,
        node_postprocessors=[MarkDocuments()],
        memory=ChatMemoryBuffer.from_defaults(token_limit=3000),
    )
    first, second = TURNS[mode]

    answer = engine.chat("On which river does Nantes lie?")
    assert counts(sent) == first
    assert str(answer).strip()
    sent.clear()
    engine.chat("And Lyon?")
    assert counts(sent) == second
    assert all("rm:doc" not in n.node.get_content() for n in answer.source_nodes)
    assert all("rm:doc" not in (m.content or "") for m in engine.chat_history)


# -- memories of agents: documents of earlier turns make no later one fail ------------------------


TOLD = [
    f"{mark(first)}\n{mark(second)}"
    for first, second in (
        ("Nantes lies on the Loire.", "Lyon lies on the Rhône."),
        ("Bordeaux lies on the Garonne.", "Paris lies on the Seine."),
    )
]


def turns() -> list[ChatMessage]:
    """Two questions, what a tool said to each, and the answers."""
    history = []
    for number, told in enumerate(TOLD):
        call = ToolCallBlock(tool_call_id=str(number), tool_name="search", tool_kwargs={})
        history += [
            ChatMessage(role="user", content=f"Question {number}?"),
            ChatMessage(role="assistant", blocks=[call]),
            ChatMessage(role="tool", content=told, additional_kwargs={"tool_call_id": str(number)}),
            ChatMessage(role="assistant", content=f"Answer {number}."),
        ]
    return history


def test_histories_are_summarised(make_llm: Any, sent: Any) -> None:
    llm = make_llm(on_missing_documents="ignore")
    history = [*turns(), ChatMessage(role="user", content="And now?")]
    memory = ChatSummaryMemoryBuffer.from_defaults(
        llm=llm, chat_history=history, token_limit=20, tokenizer_fn=llm.tokenize
    )
    summary, *_ = asyncio.run(memory.aget())
    assert summary.role == "system"
    asyncio.run(FactExtractionMemoryBlock(llm=llm).aput(history))
    assert counts(sent) == [0, 0]
    for prompt in sent:
        assert "rm:doc" not in prompt.text
        assert "Nantes lies on the Loire.\nLyon" in prompt.text  # where they stood
        assert "Paris lies on the Seine." in prompt.text
    assert history[2].content == TOLD[0]
