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
from tests.applications import world
from tests.applications.world import ANSWER, NAME, TEXTS
from tests.reader import reader_path

QUESTION = f"Question: {world.QUESTION}\nAnswer:"


@pytest.fixture(scope="module")
def llm() -> RagMiddleLLM:
    model = RagMiddleModel.from_pretrained(reader_path())
    return RagMiddleLLM(model=model, method="pine", max_new_tokens=16)


ENTRIES: dict[str, Any] = {
    "vllm": lambda title: {"text": TEXTS[title]},
    "node with score": lambda title: NodeWithScore(node=TextNode(text=TEXTS[title]), score=0.5),
}


def facts(response: Any) -> tuple[Any, ...]:
    told = response.raw["rag_middle"]
    text = getattr(response, "text", None) or response.message.content
    return text.strip(), told["documents"], told["applied"]


RIGHT = (ANSWER, len(TEXTS), True)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_of_documents_are_documents(llm: RagMiddleLLM, entry: Any) -> None:
    documents = [*map(entry, TEXTS)]
    message = ChatMessage(role="user", content=QUESTION)
    assert facts(llm.chat([message], documents=documents)) == RIGHT
    assert facts(llm.complete(QUESTION, documents=documents)) == RIGHT


def test_nothing_is_opened(llm: RagMiddleLLM, tmp_path: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("secret")
    for block in (DocumentBlock(path=path), DocumentBlock(url="http://localhost/a.txt")):
        with pytest.raises(RequestError, match="without data"):
            llm.chat([ChatMessage(role="user", blocks=[block])])


CITABLE = [CitableBlock(title=title, source="a book", content=TEXTS[title]) for title in TEXTS]


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
    assert citation.cited_content.text == TEXTS[NAME]
    assert response.raw["rag_middle"]["document_ids"] == ["a book"] * 6
    *_, last = llm.stream_chat([message])
    assert cited(last) == [citation]
    # As history they are no text.
    again = llm.chat([message, response.message, ChatMessage(role="user", content=QUESTION)])
    assert again.message.content
    assert again.raw["rag_middle"]["documents"] == 6
