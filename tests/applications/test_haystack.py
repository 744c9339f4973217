"""Applications after Haystack's public patterns.

Each answer is right, and the model reads as many documents as the application retrieved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder
from haystack.components.embedders import MockTextEmbedder
from haystack.components.generators.chat import FallbackChatGenerator
from haystack.components.generators.chat.llm import LLM
from haystack.components.joiners import DocumentJoiner
from haystack.components.rankers import LostInTheMiddleRanker
from haystack.components.retrievers import MultiQueryTextRetriever
from haystack.components.retrievers.in_memory import (
    InMemoryBM25Retriever,
    InMemoryEmbeddingRetriever,
)
from haystack.components.routers import ConditionalRouter
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.generators.rag_middle import (
    DocumentMarker,
    RagMiddleChatGenerator,
)

from rag_middle import RagMiddleModel
from tests.applications.declared import HAYSTACK, Application
from tests.applications.world import NAME, QUESTION, documents, embedding, is_right

ASKED = "Question: {{ query }}\nAnswer:"
LOOP = "{% for document in documents %}{{ document.content }}\n\n{% endfor %}"


@dataclass(frozen=True)
class Parts:
    """What an application is built from."""

    reader: RagMiddleModel
    store: InMemoryDocumentStore

    @property
    def llm(self) -> RagMiddleChatGenerator:
        options = {"max_new_tokens": 16, "on_missing_documents": "ignore"}
        return RagMiddleChatGenerator(self.reader, method="pine", generation_kwargs=options)

    @property
    def retriever(self) -> InMemoryBM25Retriever:
        return InMemoryBM25Retriever(self.store, top_k=6)

    @property
    def by_meaning(self) -> InMemoryEmbeddingRetriever:
        return InMemoryEmbeddingRetriever(self.store, top_k=6)


Build = Callable[[Parts], Any]
BUILT: dict[str, Build] = {}


def application(name: str) -> Callable[[Build], Build]:
    def declare(build: Build) -> Build:
        BUILT[name] = build
        return build

    return declare


@pytest.fixture(scope="module")
def parts(reader: RagMiddleModel) -> Parts:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(
        [
            Document(
                id=document.id or "",
                content=document.page_content,
                meta=document.metadata,
                embedding=embedding(document.page_content),
            )
            for document in documents()
        ]
    )
    return Parts(reader, store)


def test_every_application_is_declared() -> None:
    assert [*BUILT] == [declared.name for declared in HAYSTACK]


@pytest.mark.parametrize("declared", HAYSTACK, ids=lambda declared: declared.name)
@pytest.mark.one_in(3)
def test_the_answer_is_right_and_all_documents_are_seen(
    declared: Application, parts: Parts, seen: list[int]
) -> None:
    assert is_right(BUILT[declared.name](parts))
    assert tuple(seen) == declared.documents


def connected(components: Mapping[str, Any], *links: str) -> Pipeline:
    """A pipeline of these components; each link is two of their sockets."""
    pipeline = Pipeline()
    for name, component in components.items():
        pipeline.add_component(name, component)
    for link in links:
        pipeline.connect(*link.split())
    return pipeline


def asking(
    p: Parts, before: Mapping[str, Any], *links: str, documents: str = "retriever.documents"
) -> Pipeline:
    """Components that bring documents, and a generator that takes them and a question."""
    components = {**before, "prompt": ChatPromptBuilder([ChatMessage.from_user(ASKED)])}
    return connected(
        {**components, "llm": p.llm}, *links, f"{documents} llm.documents", "prompt llm.messages"
    )


def answered(pipeline: Pipeline, *asked: str, **more: Any) -> str:
    """The answer where these components are asked too, besides the prompt."""
    data = {name: {"query": QUESTION} for name in (*asked, "prompt")} | more
    return str(pipeline.run(data)["llm"]["replies"][0].text)


def marking(p: Parts, template: Any, llm: Any = None) -> Pipeline:
    """A retriever, and a template that writes its documents."""
    return connected(
        {
            "retriever": p.retriever,
            "marker": DocumentMarker(),
            "prompt": ChatPromptBuilder(template),
            "llm": p.llm if llm is None else llm,
        },
        "retriever marker",
        "marker prompt.documents",
        "prompt llm.messages",
    )


@application("retriever, prompt, generator")
def _(p: Parts) -> Any:
    return answered(asking(p, {"retriever": p.retriever}), "retriever")


@application("the same, asynchronous and streamed")
def _(p: Parts) -> Any:
    pieces: list[str] = []

    async def show(chunk: StreamingChunk) -> None:
        pieces.append(chunk.content)

    pipeline = asking(p, {"retriever": p.retriever})
    asked = {name: {"query": QUESTION} for name in ("retriever", "prompt")}
    asyncio.run(pipeline.run_async({**asked, "llm": {"streaming_callback": show}}))
    return "".join(pieces)


@application("`AnswerBuilder` with documents")
def _(p: Parts) -> Any:
    pipeline = asking(p, {"retriever": p.retriever, "answers": AnswerBuilder()})
    pipeline.connect("llm.replies", "answers.replies")
    pipeline.connect("retriever.documents", "answers.documents")
    asked = {name: {"query": QUESTION} for name in ("retriever", "prompt", "answers")}
    [answer] = pipeline.run(asked)["answers"]["answers"]
    assert len(answer.documents) == 6
    [citation] = answer.meta["rag_middle"]["citations"]
    assert citation["title"] == NAME
    return answer.data


@application("embedding retriever")
def _(p: Parts) -> Any:
    before = {"embedder": MockTextEmbedder(embedding_fn=embedding), "retriever": p.by_meaning}
    pipeline = asking(p, before, "embedder.embedding retriever.query_embedding")
    return answered(pipeline, embedder={"text": QUESTION})


@application("hybrid retrieval with `DocumentJoiner`")
def _(p: Parts) -> Any:
    before = {
        "embedder": MockTextEmbedder(embedding_fn=embedding),
        "by_meaning": p.by_meaning,
        "by_words": p.retriever,
        "joiner": DocumentJoiner(join_mode="reciprocal_rank_fusion"),
    }
    links = (
        "embedder.embedding by_meaning.query_embedding",
        "by_meaning joiner",
        "by_words joiner",
    )
    pipeline = asking(p, before, *links, documents="joiner.documents")
    return answered(pipeline, "by_words", embedder={"text": QUESTION})


@application("`MultiQueryTextRetriever`")
def _(p: Parts) -> Any:
    pipeline = asking(p, {"retriever": MultiQueryTextRetriever(retriever=p.retriever)})
    return answered(pipeline, retriever={"queries": [QUESTION, f"price {NAME}"]})


@application("`LostInTheMiddleRanker`")
def _(p: Parts) -> Any:
    before = {"retriever": p.retriever, "ranker": LostInTheMiddleRanker()}
    pipeline = asking(p, before, "retriever ranker", documents="ranker.documents")
    return answered(pipeline, "retriever")


@application("`ConditionalRouter` behind the retriever")
def _(p: Parts) -> Any:
    found = {
        "condition": "{{ documents | length > 0 }}",
        "output": "{{ documents }}",
        "output_name": "found",
        "output_type": list[Document],
    }
    nothing = {**found, "condition": "{{ not documents }}", "output_name": "nothing"}
    router = ConditionalRouter([found, nothing], unsafe=True)  # objects pass the router
    before = {"retriever": p.retriever, "router": router}
    pipeline = asking(p, before, "retriever router.documents", documents="router.found")
    return answered(pipeline, "retriever")


@application("a template with a loop over documents")
def _(p: Parts) -> Any:
    return answered(marking(p, [ChatMessage.from_user(LOOP + ASKED)]), "retriever")


@application("the same, documents in the system message")
def _(p: Parts) -> Any:
    template = [ChatMessage.from_system(LOOP), ChatMessage.from_user(ASKED)]
    return answered(marking(p, template), "retriever")


@application("the same, a template of text with `{% message %}`")
def _(p: Parts) -> Any:
    template = '{% message role="user" %}' + LOOP + ASKED + "{% endmessage %}"
    return answered(marking(p, template), "retriever")


@application("`FallbackChatGenerator`")
def _(p: Parts) -> Any:
    template = [ChatMessage.from_user(LOOP + ASKED)]
    return answered(marking(p, template, FallbackChatGenerator([p.llm, p.llm])), "retriever")


@application("`LLM` with a `user_prompt`")
def _(p: Parts) -> Any:
    llm = LLM(chat_generator=p.llm, user_prompt=LOOP + ASKED)
    pipeline = connected(
        {"retriever": p.retriever, "marker": DocumentMarker(), "llm": llm},
        "retriever marker",
        "marker llm.documents",
    )
    asked = {name: {"query": QUESTION} for name in ("retriever", "llm")}
    return pipeline.run(asked)["llm"]["last_message"].text


@application("a conversation, second question")
def _(p: Parts) -> Any:
    llm, found = p.llm, p.retriever.run(QUESTION)["documents"]
    question = ChatMessage.from_user(ASKED.replace("{{ query }}", QUESTION))
    [first] = llm.run([question], documents=found)["replies"]
    [second] = llm.run([question, first, question], documents=found)["replies"]
    return [first.text, second.text]
