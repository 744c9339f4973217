"""Query engines of every mode: whole documents in each call, reports, objects, clean texts.

Engines are used as LlamaIndex documents them. Only `Settings`, the postprocessors and, where
LlamaIndex garbles documents, the synthesizer differ.
"""

import asyncio
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.schema import MetadataMode
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.rag_middle import (
    ContextWindowError,
    MarkDocuments,
    MarkedCitationQueryEngine,
    RequestError,
)

from tests.applications.libraries import WordEmbedding

QUESTION = "On which river does Nantes lie?"
#: Modes that ask once where everything fits, and those that ask once per document.
ONE_CALL = ("compact", "tree_summarize", "simple_summarize", "compact_accumulate")
CALL_PER_DOCUMENT = ("refine", "accumulate")


def engine_of(mode: str, index: VectorStoreIndex) -> BaseQueryEngine:
    options: dict[str, Any] = {"similarity_top_k": 6, "node_postprocessors": [MarkDocuments()]}
    if mode == "citation":
        return MarkedCitationQueryEngine.from_args(index, **options)
    if mode == "router":
        engine = index.as_query_engine(**options)
        tools = [QueryEngineTool.from_defaults(engine, name="towns", description="Towns.")]
        return RouterQueryEngine(EmbeddingSingleSelector.from_defaults(WordEmbedding()), tools)
    return index.as_query_engine(response_mode=mode, **options)


MODES = (*ONE_CALL, *CALL_PER_DOCUMENT, "citation", "router")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.one_in(3)
def test_each_call_gets_whole_documents(
    mode: str, make_llm: Any, use: Any, index: VectorStoreIndex, sent: Any
) -> None:
    use(make_llm(method="pine"))  # a call without documents would warn, and warnings are errors
    response = engine_of(mode, index).query(QUESTION)

    expected = [1] * 6 if mode in CALL_PER_DOCUMENT else [6]
    assert [len(prompt.documents) for prompt in sent] == expected
    assert str(response).strip()
    assert len(response.source_nodes) >= 6
    for node in response.source_nodes:
        assert "rm:doc" not in node.node.get_content()
        assert "rm:doc" not in node.get_text()
        assert "rm:doc" not in str(node.to_dict())


@pytest.mark.parametrize("mode", [m for m in MODES if not m.lower().startswith("simple")])
@pytest.mark.one_in(7)
def test_tight_windows_get_whole_documents_too(
    mode: str, make_llm: Any, use: Any, index: VectorStoreIndex, sent: Any
) -> None:
    llm = make_llm(
        context_window=975 if mode == "citation" else 600,  # takes about two documents
        on_missing_documents="ignore",
        method="pine",
    )
    use(llm)
    engine_of(mode, index).query(QUESTION)

    assert len(sent) > 1
    per_call = [len(prompt.documents) for prompt in sent]
    assert max(per_call) < 6
    assert sum(per_call) == 6  # each document in one call, none of them cut
    # The summaries of documents are none themselves.
    assert (per_call[-1] == 0) == (mode == "tree_summarize")
    assert all(per_call[:-1])


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
@pytest.mark.one_in(3)
def test_streamed_answers_are_the_same(
    mode: str, make_llm: Any, use: Any, index: VectorStoreIndex
) -> None:
    use(make_llm(method="pine"))
    options = {"similarity_top_k": 6, "node_postprocessors": [MarkDocuments()]}
    options["response_mode"] = mode
    whole = str(index.as_query_engine(**options).query(QUESTION))
    streamed = index.as_query_engine(streaming=True, **options).query(QUESTION)
    # llama-index-core before 0.14.25 strips streamed answers.
    assert "".join(streamed.response_gen).strip() == whole.strip()


# -- citations ------------------------------------------------------------------------------------


def test_numbers_of_sources_are_part_of_their_documents(
    make_llm: Any, use: Any, index: VectorStoreIndex, sent: Any
) -> None:
    use(make_llm())
    for markers in ([], [MarkDocuments()]):
        for mode in (MetadataMode.NONE, MetadataMode.LLM):
            engine = MarkedCitationQueryEngine.from_args(
                index, similarity_top_k=6, node_postprocessors=markers, metadata_mode=mode
            )
            response = engine.query(QUESTION)
            documents = sent[-1].documents
            assert len(documents) == len(response.source_nodes) == 6
            for number, (document, node) in enumerate(
                zip(documents, response.source_nodes, strict=True), start=1
            ):
                assert f"Source {number}:" in document
                assert node.node.get_content().startswith(f"Source {number}:")
                assert node.metadata["file"] in document
                assert "rm:doc" not in document


# -- what goes wrong is heard ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "accumulate"])
def test_refusals_reach_the_caller_instead_of_an_empty_response(
    mode: str, make_llm: Any, use: Any, index: VectorStoreIndex
) -> None:
    use(make_llm(method="pine", on_missing_documents="error"))
    with pytest.raises(RequestError, match="MarkDocuments"):
        index.as_query_engine(response_mode=mode).query(QUESTION)


def test_overflow_of_the_window_reaches_the_caller_of_a_query_engine(
    make_llm: Any, index: VectorStoreIndex
) -> None:
    """With LlamaIndex's prompt helper, which knows nothing of the chat template."""
    llm = make_llm(context_window=300)
    Settings.llm, Settings.context_window = llm, 2000
    engine = index.as_query_engine(similarity_top_k=6, node_postprocessors=[MarkDocuments()])
    with pytest.raises(ContextWindowError):
        engine.query(QUESTION)
    # The helper counts tokens by `asyncio_run`: it must leave no loop that a later test collects.
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()


# -- what a user gets of an answer ----------------------------------------------------------------


def test_the_last_report_tells_method_and_documents(
    make_llm: Any, use: Any, index: VectorStoreIndex
) -> None:
    llm = make_llm(method="pine")
    use(llm)
    assert llm.last_report is None
    options = {"similarity_top_k": 3, "node_postprocessors": [MarkDocuments()]}
    for streaming in (False, True):
        llm._last_report = None
        str(index.as_query_engine(streaming=streaming, **options).query(QUESTION))
        report = llm.last_report
        assert report is not None
        assert (report["method"], report["documents"], report["applied"]) == ("pine", 3, True)


def test_context_only_gives_text_without_markers(
    make_llm: Any, use: Any, index: VectorStoreIndex
) -> None:
    use(make_llm())
    response = engine_of("context_only", index).query(QUESTION)
    assert "Nantes lies on the Loire" in str(response)
    assert "[[" not in str(response)


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


def test_objects_are_made_from_marked_documents(
    make_llm: Any, use: Any, index: VectorStoreIndex, said: Any, sent: Any
) -> None:
    """By a model that calls no tools: its text is constrained to the form."""
    said('{"name": "Loire", "length_km": 1006}')
    use(make_llm(max_new_tokens=60))
    options = {"similarity_top_k": 6, "node_postprocessors": [MarkDocuments()]}
    engine = index.as_query_engine(output_cls=River, response_mode="tree_summarize", **options)
    assert engine.query(QUESTION).response == River(name="Loire", length_km=1006)
    assert [len(prompt.documents) for prompt in sent] == [6]
