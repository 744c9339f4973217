"""Chains in other situations: no documents, another separator, a batch, an agent that streams."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_rag_middle import (
    ChatRagMiddle,
    DocumentPrompt,
    LongContextReorder,
    MarkDocuments,
    RagMiddleLLM,
    format_docs,
)
from rag_middle import MarkerError

pytestmark = pytest.mark.anyio

QUESTION = "On which river does Nantes lie?"
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {input}")


def texts(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


def stuffing(model: Any, **settings: Any) -> Any:
    return create_stuff_documents_chain(
        model, PROMPT, **{"document_prompt": DocumentPrompt(), **settings}
    )


def returning(documents: list[Document]) -> Runnable[Any, list[Document]]:
    return RunnableLambda(lambda _: documents)


def test_a_string_prompt_is_enough(tiny: Any, rivers: list[Document]) -> None:
    prompt = PromptTemplate.from_template("{context}\n\nQuestion: {input}")
    model = RagMiddleLLM(model=tiny, method="pine", max_tokens=4)
    chain = create_stuff_documents_chain(model, prompt, document_prompt=DocumentPrompt())
    assert chain.invoke({"context": rivers, "input": QUESTION})
    assert tiny.sent.documents == texts(rivers)


def test_without_documents_the_chain_still_answers(tiny: Any) -> None:
    model = ChatRagMiddle(model=tiny, method="pine", max_tokens=4, on_missing_documents="ignore")
    chain = create_retrieval_chain(returning([]), stuffing(model))
    assert chain.invoke({"input": QUESTION})["answer"]
    assert tiny.sent.documents == []


def test_a_separator_that_is_text_is_refused_and_named(tiny: Any, rivers: list[Document]) -> None:
    chain = stuffing(ChatRagMiddle(model=tiny, max_tokens=4), document_separator="\n---\n")
    with pytest.raises(MarkerError, match=r"'---' stands between .* document_separator"):
        chain.invoke({"context": rivers, "input": QUESTION})


def test_inputs_of_a_stuffing_chain_share_a_pass(tiny: Any, rivers: list[Document]) -> None:
    chain = stuffing(ChatRagMiddle(model=tiny, method="pine", max_tokens=4))
    inputs = [{"context": rivers[start:], "input": QUESTION} for start in range(3)]
    answers = chain.batch(inputs)
    assert tiny.sent.batch_sizes == [3]
    assert answers == [chain.invoke(each) for each in inputs]


def test_the_baseline_fits_where_it_is_compared(tiny: Any, rivers: list[Document]) -> None:
    reordering = ContextualCompressionRetriever(
        base_compressor=DocumentCompressorPipeline(
            transformers=[LongContextReorder(score_key="score"), MarkDocuments()]
        ),
        base_retriever=returning(rivers[::-1]),
    )
    model = ChatRagMiddle(model=tiny, max_tokens=4)
    chain = create_retrieval_chain(reordering, create_stuff_documents_chain(model, PROMPT))
    chain.invoke({"input": QUESTION})
    assert tiny.sent.documents == texts([rivers[index] for index in (0, 2, 3, 1)])


async def test_an_agent_streams_the_answer(tiny: Any, rivers: list[Document]) -> None:
    @dynamic_prompt
    def with_documents(request: Any) -> str:
        return f"Read:\n\n{format_docs(rivers)}"

    model = ChatRagMiddle(model=tiny, method="pine", max_tokens=6)
    built: Any = create_agent(model, tools=[], middleware=[with_documents])
    pieces = [
        message.content
        async for message, _ in built.astream(
            {"messages": [HumanMessage(QUESTION)]}, stream_mode="messages"
        )
    ]
    assert len(pieces) > 3
    assert tiny.sent.documents == texts(rivers)
