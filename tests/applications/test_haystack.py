"""Applications after Haystack's public patterns.

Each answer is right, and the model reads as many documents as the application retrieved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import FallbackChatGenerator
from haystack.components.generators.chat.llm import LLM
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.generators.rag_middle import (
    DocumentMarker,
    RagMiddleChatGenerator,
)

from rag_middle import RagMiddleModel
from tests.applications.libraries import documents
from tests.applications.world import QUESTION, Applications, is_right

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


application = Applications()


@pytest.fixture(scope="module")
def parts(reader: RagMiddleModel) -> Parts:
    store = InMemoryDocumentStore()
    store.write_documents(
        [Document(id=d.id or "", content=d.page_content, meta=d.metadata) for d in documents()]
    )
    return Parts(reader, store)


def connected(components: Mapping[str, Any], *links: str) -> Pipeline:
    """A pipeline of these components; each link is two of their sockets."""
    pipeline = Pipeline()
    for name, component in components.items():
        pipeline.add_component(name, component)
    for link in links:
        pipeline.connect(*link.split())
    return pipeline


@application("`FallbackChatGenerator`")
def _(p: Parts) -> Any:
    pipeline = connected(
        {
            "retriever": p.retriever,
            "marker": DocumentMarker(),
            "prompt": ChatPromptBuilder([ChatMessage.from_user(LOOP + ASKED)]),
            "llm": FallbackChatGenerator([p.llm, p.llm]),
        },
        "retriever marker",
        "marker prompt.documents",
        "prompt llm.messages",
    )
    asked = {name: {"query": QUESTION} for name in ("retriever", "prompt")}
    return pipeline.run(asked)["llm"]["replies"][0].text


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


@application("a conversation, second question", (6, 6))
def _(p: Parts) -> Any:
    llm, found = p.llm, p.retriever.run(QUESTION)["documents"]
    question = ChatMessage.from_user(ASKED.replace("{{ query }}", QUESTION))
    [first] = llm.run([question], documents=found)["replies"]
    [second] = llm.run([question, first, question], documents=found)["replies"]
    return [first.text, second.text]


@pytest.mark.parametrize(("build", "documents"), application.cases)
@pytest.mark.one_in(3)
def test_the_answer_is_right_and_all_documents_are_seen(
    build: Callable[[Parts], Any], documents: tuple[int, ...], parts: Parts, seen: list[int]
) -> None:
    assert is_right(build(parts))
    assert tuple(seen) == documents
