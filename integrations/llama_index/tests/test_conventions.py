"""Documents as objects, in messages and in calls, and the citations that come back."""

from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    TextBlock,
)
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.rag_middle import RagMiddleLLM, RequestError

from rag_middle import RagMiddleModel
from tests.reader import reader_path

FACTS = {
    "Aldgrove Harfield": "Aldgrove Harfield costs $41.",
    "Bramstow Melcroft": "Bramstow Melcroft costs $873.",
    "Cranport Tolworth": "Cranport Tolworth costs $256.",
}
NAME = "Bramstow Melcroft"
QUESTION = f"Question: How much does {NAME} cost?\nAnswer:"


@pytest.fixture(scope="module")
def llm() -> RagMiddleLLM:
    model = RagMiddleModel.from_pretrained(reader_path())
    return RagMiddleLLM(model=model, method="pine", max_new_tokens=16)


def written(title: str) -> str:
    return f"({title}) {FACTS[title]}"


ENTRIES: dict[str, Any] = {
    "vllm": lambda title: {"text": written(title)},
    "node with score": lambda title: NodeWithScore(node=TextNode(text=written(title)), score=0.5),
}


def facts(response: Any) -> tuple[Any, ...]:
    told = response.raw["rag_middle"]
    text = getattr(response, "text", None) or response.message.content
    return text.strip(), told["documents"], told["applied"]


RIGHT = (f"{NAME}: $873", 3, True)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_of_documents_are_documents(llm: RagMiddleLLM, entry: Any) -> None:
    documents = [*map(entry, FACTS)]
    message = ChatMessage(role="user", content=QUESTION)
    assert facts(llm.chat([message], documents=documents)) == RIGHT
    assert facts(llm.complete(QUESTION, documents=documents)) == RIGHT


def test_documents_may_come_in_the_extra_body(llm: RagMiddleLLM) -> None:
    documents = [*map(ENTRIES["vllm"], FACTS)]
    assert facts(llm.complete(QUESTION, extra_body={"documents": documents})) == RIGHT
    with pytest.raises(RequestError, match="documents was given"):
        llm.complete(QUESTION, documents=documents, extra_body={"documents": documents})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"documents": "a"}, "must be a list"),
        ({"documents": [5]}, "must hold nodes"),
        ({"documents": ["a", {"title": "b"}]}, "Document 1 .*cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(llm: RagMiddleLLM, call: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        llm.chat([ChatMessage(role="user", content=QUESTION)], **call)


def test_nothing_is_opened(llm: RagMiddleLLM, tmp_path: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("secret")
    for block in (DocumentBlock(path=path), DocumentBlock(url="http://localhost/a.txt")):
        with pytest.raises(RequestError, match="without data"):
            llm.chat([ChatMessage(role="user", blocks=[block])])


CITABLE = [CitableBlock(title=title, source="a book", content=written(title)) for title in FACTS]


def cited(response: Any) -> list[CitationBlock]:
    return [block for block in response.message.blocks if isinstance(block, CitationBlock)]


def test_citations_are_blocks_behind_the_text(llm: RagMiddleLLM) -> None:
    message = ChatMessage(role="user", blocks=[*CITABLE, TextBlock(text=QUESTION)])
    response = llm.chat([message])
    [citation] = cited(response)
    place = citation.additional_location_info
    assert response.message.content is not None
    assert response.message.content[place["start"] : place["end"]] == citation.title == NAME
    assert citation.source == "a book"
    assert isinstance(citation.cited_content, TextBlock)
    assert citation.cited_content.text == written(NAME)
    assert response.raw["rag_middle"]["document_ids"] == ["a book"] * 3
    *_, last = llm.stream_chat([message])
    assert cited(last) == [citation]
    # As history they are no text.
    again = llm.chat([message, response.message, ChatMessage(role="user", content=QUESTION)])
    assert again.message.content
    assert again.raw["rag_middle"]["documents"] == 3
