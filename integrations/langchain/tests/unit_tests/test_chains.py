"""Chains as people write them: the model gets the documents, and PINE minds no order.

Each test builds a chain around a retriever and asserts two things: the spans the model was told
about are exactly the retrieved documents, and under PINE another order of them gives the same
answer, where the unmodified model gives another one. Answers are greedy, of a random model in
float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.chains import (
    create_history_aware_retriever,
    create_retrieval_chain,
)
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from langchain_rag_middle import (
    ChatRagMiddle,
    DocumentPrompt,
    RagMiddleLLM,
    format_docs,
)

QUESTION = "On which river does Nantes lie?"


class Fixed(BaseRetriever):
    """Returns what it was given."""

    documents: list[Document]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.documents


#: ``ask(model, retriever)``: an answer, and the documents that the chain returned, if it does.
Ask = Callable[[Any, BaseRetriever], tuple[str, list[Document] | None]]


def retrieval_chain(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from the documents.\n\n{context}"), ("human", "{input}")]
    )
    stuffed = create_stuff_documents_chain(model, prompt, document_prompt=DocumentPrompt())
    found = create_retrieval_chain(retriever, stuffed).invoke({"input": QUESTION})
    return found["answer"], found["context"]


def lcel(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    prompt = ChatPromptTemplate.from_template("Read:\n\n{context}\n\nQuestion: {question}")
    chain = (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | prompt
        | model
        | StrOutputParser()
    )
    return chain.invoke(QUESTION), None


def artifact_of_a_tool(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    tool = create_retriever_tool(
        retriever, "search", "Finds rivers.", response_format="content_and_artifact"
    )
    return _after_tool_call(model, tool), tool.invoke(_CALL).artifact


_CALL: Any = {"name": "search", "args": {"query": QUESTION}, "id": "1", "type": "tool_call"}


def _after_tool_call(model: Any, tool: Any) -> str:
    called = AIMessage("", tool_calls=[_CALL])
    answer = model.invoke([HumanMessage(QUESTION), called, tool.invoke(_CALL)])
    return str(answer.content)


def conversation(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    history = [HumanMessage("Tell me about France."), AIMessage("It has rivers.")]
    rephrase = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("chat_history"), ("human", "{input}"), ("human", "Rephrase.")]
    )
    answer = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer from the documents.\n\n{context}"),
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
        ]
    )
    quiet = model.bind(on_missing_documents="ignore")  # rephrasing has no documents
    chain = create_retrieval_chain(
        create_history_aware_retriever(quiet, retriever, rephrase),
        create_stuff_documents_chain(model, answer, document_prompt=DocumentPrompt()),
    )
    found = chain.invoke({"input": QUESTION, "chat_history": history})
    return found["answer"], found["context"]


def history_with_documents(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    documents = retriever.invoke(QUESTION)
    earlier = [
        HumanMessage(f"{format_docs([Document('The Rhine is long.')])}\n\nIs it?"),
        AIMessage("It is."),
    ]
    messages = [*earlier, HumanMessage(f"{format_docs(documents)}\n\n{QUESTION}")]
    return str(model.invoke(messages).content), None


CHAINS: dict[str, Ask] = {
    "create_retrieval_chain": retrieval_chain,
    "LCEL": lcel,
    "ToolMessage.artifact": artifact_of_a_tool,
    "history-aware retrieval": conversation,
    "documents in several turns": history_with_documents,
}
OF_TEXT = ("create_retrieval_chain", "LCEL")
ORDERS = list(itertools.islice(itertools.permutations(range(4)), 0, 24, 7))  # 4 of 24


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.one_in(2)
def test_the_model_gets_the_documents_and_pine_minds_no_order(
    name: str, tiny: Any, rivers: list[Document]
) -> None:
    check(name, ChatRagMiddle, tiny, rivers)


@pytest.mark.parametrize("name", OF_TEXT)
def test_the_same_for_the_model_of_text(name: str, tiny: Any, rivers: list[Document]) -> None:
    check(name, RagMiddleLLM, tiny, rivers)


def check(name: str, kind: Any, tiny: Any, rivers: list[Document]) -> None:
    answers: dict[str, set[str]] = {"none": set(), "pine": set()}
    for method, order in itertools.product(answers, ORDERS):
        retrieved = [rivers[index] for index in order]
        model = kind(model=tiny, method=method, max_tokens=10)
        answer, returned = CHAINS[name](model, Fixed(documents=retrieved))
        assert tiny.sent.documents == [document.page_content for document in retrieved]
        assert "[[rm:doc:" not in tiny.sent.text
        assert returned in (None, retrieved)  # as they were
        answers[method].add(answer)
    assert len(answers["pine"]) == 1
    assert len(answers["none"]) > 1
