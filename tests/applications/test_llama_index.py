"""Applications after LlamaIndex's public patterns.

Each answer is right, and the model reads as many documents as the application retrieved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from llama_index.core import PromptTemplate, VectorStoreIndex, get_response_synthesizer
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import Document
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.rag_middle import (
    DocumentPromptHelper,
    MarkDocuments,
    MarkedSynthesizer,
    RagMiddleLLM,
)

from rag_middle import RagMiddleModel
from tests.applications.libraries import WordEmbedding, nodes
from tests.applications.world import QUESTION, TEXTS, Applications, is_right

pytestmark = pytest.mark.filterwarnings(
    "ignore::rag_middle.generation.NumberedDocumentsWarning"  # citation engines number sources
)

ASKED = PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:")
REFINE = PromptTemplate(
    "So far: {existing_answer}\n\n{context_msg}\n\nQuestion: {query_str}\nAnswer:"
)
MARKED = {"similarity_top_k": 6, "node_postprocessors": [MarkDocuments()]}


@dataclass(frozen=True)
class Parts:
    """What an application is built from."""

    llm: RagMiddleLLM
    index: VectorStoreIndex
    helper: DocumentPromptHelper

    @property
    def retriever(self) -> BaseRetriever:
        return self.index.as_retriever(similarity_top_k=6)

    def synthesizer(self, mode: str = "compact", **options: Any) -> Any:
        return get_response_synthesizer(
            self.llm,
            prompt_helper=self.helper,
            text_qa_template=ASKED,
            refine_template=REFINE,
            summary_template=ASKED,
            response_mode=mode,
            **options,
        )

    def engine(self, mode: str = "compact", **options: Any) -> Any:
        synthesizer = self.synthesizer(mode, streaming=options.pop("streaming", False))
        options = {**MARKED, **options}
        return self.index.as_query_engine(self.llm, response_synthesizer=synthesizer, **options)


application = Applications()


@pytest.fixture(scope="module")
def parts(reader: RagMiddleModel) -> Parts:
    llm = RagMiddleLLM(
        model=reader, method="pine", max_new_tokens=16, on_missing_documents="ignore"
    )
    index = VectorStoreIndex(nodes(), embed_model=WordEmbedding())
    return Parts(llm, index, DocumentPromptHelper.from_llm(llm))


@application("query engine over sentence windows")
def _(p: Parts) -> Any:
    parser = SentenceWindowNodeParser.from_defaults(
        sentence_splitter=lambda text: [text], window_size=1
    )
    windows = parser.get_nodes_from_documents([Document(text=text) for text in TEXTS.values()])
    index = VectorStoreIndex(windows, embed_model=WordEmbedding())
    processors = [MetadataReplacementPostProcessor(target_metadata_key="window"), MarkDocuments()]
    return RetrieverQueryEngine(
        index.as_retriever(similarity_top_k=6), p.synthesizer(), node_postprocessors=processors
    ).query(QUESTION)


@application("`CitationQueryEngine`, its own synthesizer", (0,))
def _(p: Parts) -> Any:
    return CitationQueryEngine.from_args(
        p.index, llm=p.llm, citation_qa_template=ASKED, **MARKED
    ).query(QUESTION)


def tool(p: Parts) -> QueryEngineTool:
    return QueryEngineTool.from_defaults(p.engine(), name="things", description="Prices.")


class SameQuestion(BaseQuestionGenerator):
    """Asks the question twice, without asking the model."""

    def generate(self, tools: Any, query: Any) -> list[SubQuestion]:
        return [SubQuestion(sub_question=query.query_str, tool_name="things")] * 2

    async def agenerate(self, tools: Any, query: Any) -> list[SubQuestion]:
        return self.generate(tools, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None: ...


@application("`SubQuestionQueryEngine`", (6, 6, 2))
def _(p: Parts) -> Any:
    return SubQuestionQueryEngine.from_defaults(
        [tool(p)],
        llm=p.llm,
        question_gen=SameQuestion(),
        response_synthesizer=MarkedSynthesizer(p.synthesizer()),
        use_async=False,
        verbose=False,
    ).query(QUESTION)


@pytest.mark.parametrize(("build", "documents"), application.cases)
@pytest.mark.one_in(3)
def test_the_answer_is_right_and_all_documents_are_seen(
    build: Callable[[Parts], Any], documents: tuple[int, ...], parts: Parts, seen: list[int]
) -> None:
    assert is_right(build(parts))
    assert tuple(seen) == documents
