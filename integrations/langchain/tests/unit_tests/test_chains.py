"""Chains as people write them: the model gets the documents, and PINE minds no order.

Each test builds a chain around a retriever and asserts two things: the spans the model was told
about are exactly the retrieved documents, and under PINE another order of them gives the same
answer, where the unmodified model gives another one. Answers are greedy, of a random model in
float64.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import dynamic_prompt
from langchain_classic.chains import (
    ConversationalRetrievalChain,
    RetrievalQA,
    create_history_aware_retriever,
    create_retrieval_chain,
)
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core._api import LangChainDeprecationWarning
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
    MarkDocuments,
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


def retrieval_chain_with_titles(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    prompt = ChatPromptTemplate.from_template("Read:\n{context}\n\nQuestion: {input}")
    stuffed = create_stuff_documents_chain(
        model,
        prompt,
        document_prompt=DocumentPrompt(template="{title}: {page_content}"),
        document_separator="\n",
    )
    found = create_retrieval_chain(retriever, stuffed).invoke({"input": QUESTION})
    return found["answer"], found["context"]


def retrieval_qa(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    chain = RetrievalQA.from_chain_type(
        model,
        retriever=retriever,
        return_source_documents=True,
        chain_type_kwargs={"document_prompt": DocumentPrompt()},
    )
    found = chain.invoke({"query": QUESTION})
    return found["result"], found["source_documents"]


def lcel(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    prompt = ChatPromptTemplate.from_template("Read:\n\n{context}\n\nQuestion: {question}")
    chain = (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | prompt
        | model
        | StrOutputParser()
    )
    return chain.invoke(QUESTION), None


def of_format(template: str, template_format: Any) -> Ask:
    def ask(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
        prompt = ChatPromptTemplate.from_template(template, template_format=template_format)
        chain = (
            {"context": retriever | format_docs, "question": RunnablePassthrough()}
            | prompt
            | model
            | StrOutputParser()
        )
        return chain.invoke(QUESTION), None

    return ask


def marked_text_of_a_tool(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    tool = create_retriever_tool(
        retriever, "search", "Finds rivers.", document_prompt=DocumentPrompt()
    )
    return _after_tool_call(model, tool), None


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


def agent(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    @dynamic_prompt
    def with_documents(request: Any) -> str:
        question = request.state["messages"][-1].text
        return f"Answer from the documents.\n\n{format_docs(retriever.invoke(question))}"

    built: Any = create_agent(model, tools=[], middleware=[with_documents])
    return str(built.invoke({"messages": [HumanMessage(QUESTION)]})["messages"][-1].content), None


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


def conversational_retrieval(model: Any, retriever: BaseRetriever) -> tuple[str, list[Document]]:
    chain = ConversationalRetrievalChain.from_llm(
        model,
        retriever=retriever,
        return_source_documents=True,
        combine_docs_chain_kwargs={"document_prompt": DocumentPrompt()},
    )
    found = chain.invoke({"question": QUESTION, "chat_history": []})
    return found["answer"], found["source_documents"]


def history_with_documents(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    documents = retriever.invoke(QUESTION)
    earlier = [
        HumanMessage(f"{format_docs([Document('The Rhine is long.')])}\n\nIs it?"),
        AIMessage("It is."),
    ]
    messages = [*earlier, HumanMessage(f"{format_docs(documents)}\n\n{QUESTION}")]
    return str(model.invoke(messages).content), None


def compression_pipeline(model: Any, retriever: BaseRetriever) -> tuple[str, None]:
    marking = ContextualCompressionRetriever(
        base_compressor=DocumentCompressorPipeline(transformers=[MarkDocuments()]),
        base_retriever=retriever,
    )
    prompt = ChatPromptTemplate.from_template("{context}\n\n{input}")
    chain = create_retrieval_chain(marking, create_stuff_documents_chain(model, prompt))
    return chain.invoke({"input": QUESTION})["answer"], None


CHAINS: dict[str, Ask] = {
    "create_retrieval_chain": retrieval_chain,
    "create_retrieval_chain with titles": retrieval_chain_with_titles,
    "RetrievalQA": retrieval_qa,
    "LCEL": lcel,
    "f-string": of_format("Read:\n{context}\nQuestion: {question}", "f-string"),
    "jinja2": of_format("Read:\n{{ context }}\nQuestion: {{ question }}", "jinja2"),
    "mustache": of_format("Read:\n{{{context}}}\nQuestion: {{{question}}}", "mustache"),
    "mustache that escapes": of_format("Read:\n{{context}}\nQuestion: {{question}}", "mustache"),
    "create_retriever_tool": marked_text_of_a_tool,
    "ToolMessage.artifact": artifact_of_a_tool,
    "create_agent with dynamic_prompt": agent,
    "history-aware retrieval": conversation,
    "ConversationalRetrievalChain": conversational_retrieval,
    "documents in several turns": history_with_documents,
    "compression pipeline": compression_pipeline,
}
#: How documents read in chains that do not show their text as it is.
READS: dict[str, Callable[[Document], str]] = {
    "create_retrieval_chain with titles": lambda d: f"{d.metadata['title']}: {d.page_content}",
    "mustache that escapes": lambda d: html.escape(d.page_content),
}
OF_TEXT = ("create_retrieval_chain", "RetrievalQA", "LCEL", "jinja2", "compression pipeline")
ORDERS = list(itertools.islice(itertools.permutations(range(4)), 0, 24, 7))  # 4 of 24

classic = pytest.mark.filterwarnings(
    # RetrievalQA and ConversationalRetrievalChain are old, and much used.
    f"ignore::{LangChainDeprecationWarning.__module__}.{LangChainDeprecationWarning.__name__}"
)


@classic
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.one_in(5)
def test_the_model_gets_the_documents_and_pine_minds_no_order(
    name: str, tiny: Any, rivers: list[Document]
) -> None:
    check(name, ChatRagMiddle, tiny, rivers)


@classic
@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.one_in(5)
def test_the_same_for_the_model_of_text(name: str, tiny: Any, rivers: list[Document]) -> None:
    check(name, RagMiddleLLM, tiny, rivers)


def check(name: str, kind: Any, tiny: Any, rivers: list[Document]) -> None:
    reads = READS.get(name, lambda document: document.page_content)
    answers: dict[str, set[str]] = {"none": set(), "pine": set()}
    for method, order in itertools.product(answers, ORDERS):
        retrieved = [rivers[index] for index in order]
        model = kind(model=tiny, method=method, max_tokens=10)
        answer, returned = CHAINS[name](model, Fixed(documents=retrieved))
        assert tiny.sent.documents == [reads(document) for document in retrieved]
        assert "[[rm:doc:" not in tiny.sent.text
        assert returned in (None, retrieved)  # as they were
        answers[method].add(answer)
    assert len(answers["pine"]) == 1
    assert len(answers["none"]) > 1
