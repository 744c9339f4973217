"""What a user gets of an answer from nodes: reports of its calls, and text without markers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.llms.rag_middle import MarkDocuments

from rag_middle.generation import MissingDocumentsWarning

if TYPE_CHECKING:
    from conftest import MakeLLM, Use


def test_the_last_report_tells_method_and_documents(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    llm = make_llm(method="pine")
    use(llm)
    assert llm.last_report is None
    options = {"similarity_top_k": 3, "node_postprocessors": [MarkDocuments()]}
    for streaming in (False, True):
        llm._last_report = None
        str(index.as_query_engine(streaming=streaming, **options).query(question))
        report = llm.last_report
        assert report is not None
        assert (report["method"], report["documents"], report["applied"]) == ("pine", 3, True)


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
