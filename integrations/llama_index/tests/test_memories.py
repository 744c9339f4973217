"""Memories of agents: documents that tools returned in earlier turns make no later one fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.memory import ChatSummaryMemoryBuffer, FactExtractionMemoryBlock

from rag_middle import mark

if TYPE_CHECKING:
    from conftest import Call, MakeLLM

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


def test_histories_are_summarised(make_llm: MakeLLM, calls: list[Call]) -> None:
    llm = make_llm(on_missing_documents="ignore")
    history = [*turns(), ChatMessage(role="user", content="And now?")]
    memory = ChatSummaryMemoryBuffer.from_defaults(
        llm=llm, chat_history=history, token_limit=20, tokenizer_fn=llm.tokenize
    )
    summary, *_ = asyncio.run(memory.aget())
    assert summary.role == "system"
    asyncio.run(FactExtractionMemoryBlock(llm=llm).aput(history))
    assert [call.documents for call in calls] == [0, 0]
    for call in calls:
        assert "rm:doc" not in call.text
        assert "Nantes lies on the Loire.\nLyon" in call.text  # where they stood
        assert "Paris lies on the Seine." in call.text
    assert history[2].content == TOLD[0]
