"""Pipelines of Haystack: the answer is right, and the model tells all documents apart."""

import asyncio
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder
from haystack.components.embedders import MockDocumentEmbedder, MockTextEmbedder
from haystack.components.rankers import LostInTheMiddleRanker
from haystack.components.retrievers.in_memory import (
    InMemoryBM25Retriever,
    InMemoryEmbeddingRetriever,
)
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.generators.rag_middle import (
    DocumentMarker,
    RagMiddleChatGenerator,
)

from rag_middle.generation import MissingDocumentsWarning
from tests.applications.world import ANSWER, QUESTION, embedding

ASKED = [ChatMessage.from_user("Question: {{ query }}\nAnswer:")]
LOOP = "{% for document in documents %}{{ document.content }}\n\n{% endfor %}"
QUESTION_BEHIND = LOOP + "Question: {{ query }}\nAnswer:"
TEMPLATES = {
    "messages": [ChatMessage.from_user(QUESTION_BEHIND)],
    "text": '{% message role="user" %}' + QUESTION_BEHIND + "{% endmessage %}",
    "two messages": [ChatMessage.from_system(LOOP), *ASKED],
}


@pytest.fixture
def pipeline(store: InMemoryDocumentStore, generator: RagMiddleChatGenerator) -> Pipeline:
    """Documents go to the generator, and to the builder of answers."""
    built = Pipeline()
    built.add_component("retriever", InMemoryBM25Retriever(store, top_k=6))
    built.add_component("prompt_builder", ChatPromptBuilder(ASKED))
    built.add_component("llm", generator)
    built.add_component("answer_builder", AnswerBuilder())
    built.connect("retriever.documents", "llm.documents")
    built.connect("prompt_builder.prompt", "llm.messages")
    built.connect("retriever.documents", "answer_builder.documents")
    built.connect("llm.replies", "answer_builder.replies")
    return built


RUN = {name: {"query": QUESTION} for name in ("retriever", "prompt_builder", "answer_builder")}


def test_the_answer_is_right_and_says_what_it_was_read_from(pipeline: Pipeline) -> None:
    [made] = pipeline.run(RUN)["answer_builder"]["answers"]
    assert made.data == ANSWER
    report = made.meta["rag_middle"]
    assert (report["method"], report["applied"], report["documents"]) == ("pine", True, 6)
    assert sorted(report["document_ids"]) == sorted(document.id for document in made.documents)
    [citation] = report["citations"]
    assert citation == {
        "document_id": "glenmoor",
        "title": "Glenmoor Birkdale",
        "start": 0,
        "end": len("Glenmoor Birkdale"),
    }
    assert not any("[[rm:doc" in document.content for document in made.documents)


def test_a_pipeline_is_the_same_after_yaml(pipeline: Pipeline) -> None:
    again = Pipeline.loads(pipeline.dumps())
    assert again.to_dict()["components"] == pipeline.to_dict()["components"]
    # A store in memory is saved without its documents.
    stored: Any = again.get_component("retriever")
    kept: Any = pipeline.get_component("retriever")
    stored.document_store = kept.document_store
    [made] = again.run(RUN)["answer_builder"]["answers"]
    assert made.data == ANSWER
    assert made.meta["rag_middle"]["method"] == "pine"


@pytest.mark.anyio
async def test_an_asynchronous_pipeline_streams(pipeline: Pipeline) -> None:
    pieces: list[str] = []

    async def show(chunk: StreamingChunk) -> None:
        pieces.append(chunk.content)

    data = RUN | {"llm": {"streaming_callback": show}}
    result = await pipeline.run_async(data)
    [made] = result["answer_builder"]["answers"]
    assert made.data == ANSWER == "".join(pieces)


def test_a_pipeline_without_documents_is_named(generator: RagMiddleChatGenerator) -> None:
    built = Pipeline()
    built.add_component("prompt_builder", ChatPromptBuilder(ASKED))
    built.add_component("llm", generator)
    built.connect("prompt_builder.prompt", "llm.messages")
    data = {"prompt_builder": {"query": QUESTION}}
    for run in (built.run, lambda data: asyncio.run(built.run_async(data))):
        with pytest.warns(MissingDocumentsWarning, match="DocumentMarker"):
            run(data)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_writes_documents_stays_as_it_is(
    documents: list[Document], generator: RagMiddleChatGenerator, template: Any
) -> None:
    embedded = MockDocumentEmbedder(embedding_fn=embedding).run(documents)["documents"]
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(embedded)
    built = Pipeline()
    built.add_component("embedder", MockTextEmbedder(embedding_fn=embedding))
    built.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=6))
    built.add_component("ranker", LostInTheMiddleRanker())
    built.add_component("marker", DocumentMarker())
    built.add_component("prompt_builder", ChatPromptBuilder(template))
    built.add_component("llm", generator)
    built.connect("embedder.embedding", "retriever.query_embedding")
    built.connect("retriever.documents", "ranker.documents")
    built.connect("ranker.documents", "marker.documents")
    built.connect("marker.documents", "prompt_builder.documents")
    built.connect("prompt_builder.prompt", "llm.messages")
    data = {"embedder": {"text": QUESTION}, "prompt_builder": {"query": QUESTION}}
    [reply] = built.run(data)["llm"]["replies"]
    assert reply.text == ANSWER
    assert reply.meta["rag_middle"]["documents"] == 6
