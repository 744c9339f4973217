"""Query engines of every mode: whole documents in each call, reports, objects, clean texts.

Engines are used as LlamaIndex documents them. Only `Settings`, the postprocessors and, where
LlamaIndex garbles documents, the synthesizer differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.schema import MetadataMode
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.rag_middle import (
    ContextWindowError,
    MarkDocuments,
    MarkedCitationQueryEngine,
    RequestError,
)

from rag_middle import parse

if TYPE_CHECKING:
    from conftest import MakeLLM, Use


#: Modes that ask once where everything fits, and those that ask once per document.
ONE_CALL = ("compact", "tree_summarize", "simple_summarize", "compact_accumulate")
CALL_PER_DOCUMENT = ("refine", "accumulate")


class FirstEngine(BaseSelector):
    """Selects the first engine, without asking."""

    def _select(self, choices: Any, query: Any) -> SelectorResult:
        return SelectorResult(selections=[SingleSelection(index=0, reason="it is the first")])

    async def _aselect(self, choices: Any, query: Any) -> SelectorResult:
        return self._select(choices, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None: ...


def tool(engine: BaseQueryEngine) -> QueryEngineTool:
    return QueryEngineTool.from_defaults(engine, name="towns", description="Towns and rivers.")


def engine_of(mode: str, index: VectorStoreIndex, marker: Any) -> BaseQueryEngine:
    options: dict[str, Any] = {"similarity_top_k": 6, "node_postprocessors": [marker]}
    if mode == "citation":
        return MarkedCitationQueryEngine.from_args(index, **options)
    if mode == "router":
        inner = tool(index.as_query_engine(**options))
        return RouterQueryEngine(selector=FirstEngine(), query_engine_tools=[inner])
    return index.as_query_engine(response_mode=mode, **options)


MODES = (*ONE_CALL, *CALL_PER_DOCUMENT, "citation", "router")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.one_in(3)
def test_each_call_gets_whole_documents(
    mode: str, make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str, calls: list
) -> None:
    use(make_llm(method="pine"))  # a call without documents would warn, and warnings are errors
    response = engine_of(mode, index, MarkDocuments()).query(question)

    expected = [1] * 6 if mode in CALL_PER_DOCUMENT else [6]
    assert [call.documents for call in calls] == expected
    assert str(response).strip()
    assert len(response.source_nodes) >= 6
    for node in response.source_nodes:
        assert "rm:doc" not in node.node.get_content()
        assert "rm:doc" not in node.get_text()
        assert "rm:doc" not in str(node.to_dict())


@pytest.mark.parametrize("mode", [m for m in MODES if not m.lower().startswith("simple")])
@pytest.mark.one_in(7)
def test_tight_windows_get_whole_documents_too(
    mode: str, make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str, calls: list
) -> None:
    llm = make_llm(
        context_window=320 if mode == "citation" else 335,  # takes about two documents
        on_missing_documents="ignore",
        method="pine",
    )
    use(llm)
    engine_of(mode, index, MarkDocuments()).query(question)

    assert len(calls) > 1
    per_call = [call.documents for call in calls]
    assert max(per_call) < 6
    assert sum(per_call) == 6  # each document in one call, none of them cut
    # The summaries of documents are none themselves.
    assert (per_call[-1] == 0) == (mode == "tree_summarize")
    assert all(per_call[:-1])


@pytest.mark.usefixtures("unstripped_streams")
@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
@pytest.mark.one_in(3)
def test_streamed_answers_are_the_same(
    mode: str, make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm(method="pine"))
    options: dict[str, Any] = {
        "response_mode": mode,
        "similarity_top_k": 6,
        "node_postprocessors": [MarkDocuments()],
    }
    whole = str(index.as_query_engine(**options).query(question))
    streamed = index.as_query_engine(streaming=True, **options).query(question)
    assert "".join(streamed.response_gen) == whole


# -- citations ------------------------------------------------------------------------------------


def test_numbers_of_sources_are_part_of_their_documents(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str, calls: list
) -> None:
    use(make_llm(method="pine"))
    for markers in ([], [MarkDocuments()]):
        for mode in (MetadataMode.NONE, MetadataMode.LLM):
            engine = MarkedCitationQueryEngine.from_args(
                index, similarity_top_k=6, node_postprocessors=markers, metadata_mode=mode
            )
            response = engine.query(question)
            sent = parse(calls[-1].text).documents
            assert len(sent) == len(response.source_nodes) == 6
            for number, (document, node) in enumerate(
                zip(sent, response.source_nodes, strict=True), start=1
            ):
                assert f"Source {number}:" in document.text
                assert node.node.get_content().startswith(f"Source {number}:")
                assert node.metadata["file"] in document.text
                assert "rm:doc" not in document.text


# -- what goes wrong is heard ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "accumulate"])
def test_refusals_reach_the_caller_instead_of_an_empty_response(
    mode: str, make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm(method="pine", on_missing_documents="error"))
    with pytest.raises(RequestError, match="MarkDocuments"):
        index.as_query_engine(response_mode=mode).query(question)


def test_overflow_of_the_window_reaches_the_caller_of_a_query_engine(
    make_llm: MakeLLM, index: VectorStoreIndex, question: str
) -> None:
    """With LlamaIndex's prompt helper, which knows nothing of the chat template."""
    llm = make_llm(context_window=300)
    Settings.llm, Settings.context_window = llm, 2000
    engine = index.as_query_engine(similarity_top_k=6, node_postprocessors=[MarkDocuments()])
    with pytest.raises(ContextWindowError):
        engine.query(question)
    # The helper counts tokens by `asyncio_run`: it must leave no loop that a later test collects.
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()


# -- what a user gets of an answer ----------------------------------------------------------------


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


def test_context_only_gives_text_without_markers(
    make_llm: MakeLLM, use: Use, index: VectorStoreIndex, question: str
) -> None:
    use(make_llm())
    response = engine_of("context_only", index, MarkDocuments()).query(question)
    assert "Nantes lies on the Loire" in str(response)
    assert "[[" not in str(response)


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


def test_objects_are_made_from_marked_documents(
    make_llm: MakeLLM,
    use: Use,
    index: VectorStoreIndex,
    question: str,
    said: Callable[..., None],
    calls: list,
) -> None:
    """By a model that calls no tools: its text is constrained to the form."""
    said('{"name": "Loire", "length_km": 1006}')
    use(make_llm(max_new_tokens=60))
    options = {"similarity_top_k": 6, "node_postprocessors": [MarkDocuments()]}
    engine = index.as_query_engine(output_cls=River, response_mode="tree_summarize", **options)
    assert engine.query(question).response == River(name="Loire", length_km=1006)
    assert [call.documents for call in calls] == [6]
