"""Applications after LangChain's and LangGraph's public patterns.

Each answer is right, and the model reads as many documents as the application retrieved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_classic.chains import (
    RetrievalQA,
    create_history_aware_retriever,
    create_retrieval_chain,
)
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.output_parsers import RegexParser
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, MarkDocuments
from rag_middle import RagMiddleModel
from tests.applications.libraries import WordEmbeddings, documents
from tests.applications.world import QUESTION, Applications, is_right

pytestmark = pytest.mark.filterwarnings(
    "ignore:The apply_and_parse method is deprecated"  # LangChain's own, in map_rerank
)

ASKED = "{context}\n\nQuestion: {question}\nAnswer:"
#: For chains that ask about one document at a time.
EACH = "{context}\n\nQuestion: What is the price?\nAnswer:"


@dataclass(frozen=True)
class Parts:
    """What an application is built from."""

    model: ChatRagMiddle
    retriever: BaseRetriever


application = Applications()


@pytest.fixture(scope="module")
def parts(reader: RagMiddleModel) -> Parts:
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_documents(documents())
    model = ChatRagMiddle(model=reader, method="pine", max_tokens=16)
    return Parts(model, store.as_retriever(search_kwargs={"k": 6}))


@application("`create_retrieval_chain`, the question rephrased", (0, 6))
def _(p: Parts) -> Any:
    history = MessagesPlaceholder("chat_history")
    rephrase = ChatPromptTemplate.from_messages([history, ("human", "Question: {input}\nAnswer:")])
    answer = ChatPromptTemplate.from_messages(
        [("system", "{context}"), history, ("human", "Question: {input}\nAnswer:")]
    )
    undocumented: Any = p.model.bind(on_missing_documents="ignore")  # by nature
    chain = create_retrieval_chain(
        create_history_aware_retriever(undocumented, p.retriever, rephrase),
        create_stuff_documents_chain(p.model, answer, document_prompt=DocumentPrompt()),
    )
    said = [HumanMessage("Hello"), AIMessage("Hello.")]
    answered = chain.invoke({"input": QUESTION, "chat_history": said})
    assert not any("[[rm:doc" in document.page_content for document in answered["context"])
    return answered["answer"]


@application("`create_retriever_tool`, documents in the artifact")
def _(p: Parts) -> Any:
    form: Any = "content_and_artifact"
    tool = create_retriever_tool(p.retriever, "search", "Finds prices.", response_format=form)
    call: Any = {"name": "search", "args": {"query": QUESTION}, "id": "1", "type": "tool_call"}
    question = HumanMessage(f"Question: {QUESTION}\nAnswer:")
    messages = [AIMessage("", tool_calls=[call]), tool.invoke(call), question]
    return p.model.invoke([HumanMessage("Look it up."), *messages]).content


def qa(p: Parts, kind: str, **options: Any) -> str:
    retriever = options.pop("retriever", p.retriever)
    chain = RetrievalQA.from_chain_type(
        p.model, chain_type=kind, retriever=retriever, chain_type_kwargs=options
    )
    return str(chain.invoke({"query": QUESTION})["result"])


REFINE = "So far: {existing_answer}\n\n{context_str}\n\nQuestion: {question}\nAnswer:"


@application("`RetrievalQA`, refine", (1,) * 6)
def _(p: Parts) -> Any:
    return qa(
        p,
        "refine",
        question_prompt=PromptTemplate.from_template(ASKED.replace("context", "context_str")),
        refine_prompt=PromptTemplate.from_template(REFINE),
        document_prompt=DocumentPrompt(),
    )


def marked(p: Parts) -> BaseRetriever:
    """For chains that take no ``document_prompt``: the documents themselves are marked."""
    return ContextualCompressionRetriever(
        base_compressor=DocumentCompressorPipeline(transformers=[MarkDocuments()]),
        base_retriever=p.retriever,
    )


@application("`RetrievalQA`, map_reduce", (*(1,) * 6, 6))
def _(p: Parts) -> Any:
    chain = RetrievalQA.from_chain_type(
        p.model,
        chain_type="map_reduce",
        retriever=marked(p),
        chain_type_kwargs={
            "question_prompt": PromptTemplate.from_template(EACH),
            "combine_prompt": PromptTemplate.from_template(ASKED.replace("context", "summaries")),
        },
    )
    reducing = chain.combine_documents_chain.reduce_documents_chain
    reducing.combine_documents_chain.document_prompt = DocumentPrompt()
    return chain.invoke({"query": QUESTION})["result"]


@application("`RetrievalQA`, map_rerank", (1,) * 6)
def _(p: Parts) -> Any:
    rated = PromptTemplate.from_template(EACH)
    # Rated by price: the thing asked for is the most expensive one.
    rated.output_parser = RegexParser(regex=r"(.*\$(\d+))", output_keys=["answer", "score"])
    return qa(p, "map_rerank", retriever=marked(p), prompt=rated)


@pytest.mark.parametrize(("build", "documents"), application.cases)
@pytest.mark.one_in(5)
def test_the_answer_is_right_and_all_documents_are_seen(
    build: Callable[[Parts], Any], documents: tuple[int, ...], parts: Parts, seen: list[int]
) -> None:
    assert is_right(build(parts))
    assert tuple(seen) == documents
