"""Structured output of a model that calls no tools: text completion programs, constrained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llama_index.core import VectorStoreIndex
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.rag_middle import MarkDocuments

if TYPE_CHECKING:
    from conftest import MakeLLM


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


PROMPT = PromptTemplate("Name a river of {country}.")
LOIRE = '{"name": "Loire", "length_km": 1006}'


def test_structured_predict_reads_what_the_model_wrote(
    make_llm: MakeLLM, said: Callable[..., None]
) -> None:
    said(LOIRE)
    llm = make_llm(max_new_tokens=60)
    assert llm.structured_predict(River, PROMPT, country="France").length_km == 1006
    as_structured = llm.as_structured_llm(River)
    assert as_structured.complete("Name a river.").raw.name == "Loire"


def test_query_engines_return_objects_made_from_marked_documents(
    make_llm: MakeLLM,
    use: Callable[..., None],
    index: VectorStoreIndex,
    question: str,
    said: Callable[..., None],
    calls: list,
) -> None:
    said(LOIRE)
    use(make_llm(max_new_tokens=60))
    engine = index.as_query_engine(
        output_cls=River,
        response_mode="tree_summarize",
        similarity_top_k=6,
        node_postprocessors=[MarkDocuments()],
    )
    assert engine.query(question).response.name == "Loire"
    assert [call.documents for call in calls] == [6]
