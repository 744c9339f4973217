"""What a user gets of an answer from nodes: reports of its calls, and text without markers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.llms.rag_middle import MarkDocuments
from llama_index.llms.rag_middle.synthesis import current_synthesis

from rag_middle.generation import MissingDocumentsWarning

if TYPE_CHECKING:
    from conftest import MakeLLM, Use


@pytest.mark.parametrize("streaming", [False, True])
def test_a_response_tells_method_and_documents(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str, streaming: bool
) -> None:
    llm = make_llm(method="pine")
    use(llm)
    assert llm.last_report is None
    engine = index.as_query_engine(
        similarity_top_k=3, node_postprocessors=[MarkDocuments()], streaming=streaming
    )
    response: Any = engine.query(question)
    if streaming:
        response.get_response()
    report = response.metadata["rag_middle"]
    assert (report["method"], report["documents"], report["applied"]) == ("pine", 3, True)
    assert report["calls"] == [llm.last_report]
    assert current_synthesis() is None


def test_an_asynchronous_response_of_several_calls_tells_them_all(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm(method="pine"))
    engine = index.as_query_engine(
        similarity_top_k=3, node_postprocessors=[MarkDocuments()], response_mode="refine"
    )
    report = asyncio.run(engine.aquery(question)).metadata["rag_middle"]
    assert [call["documents"] for call in report["calls"]] == [1, 1, 1]


def test_forgotten_marks_are_announced(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm(method="pine"))
    with pytest.warns(MissingDocumentsWarning, match="pine needs documents"):
        index.as_query_engine().query(question)
    with pytest.warns(MissingDocumentsWarning, match="pine needs documents"):
        asyncio.run(index.as_query_engine().aquery(question))


def test_context_only_gives_text_without_markers(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm())
    engine = index.as_query_engine(
        response_mode="context_only", node_postprocessors=[MarkDocuments()]
    )
    response = engine.query(question)
    assert "Nantes lies on the Loire" in str(response)
    assert "[[" not in str(response)
    assert "rag_middle" not in response.metadata  # nothing was asked of the model
