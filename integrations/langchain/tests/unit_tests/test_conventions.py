"""Documents as clients of other models send them, and the citations that come back."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk
from langchain_core.output_parsers import StrOutputParser

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM
from rag_middle import RagMiddleModel, UnsupportedGenerationError
from tests.applications import world
from tests.applications.world import TEXTS
from tests.reader import reader_path

QUESTION = f"Question: {world.QUESTION}\nAnswer:"
ADDRESS = "https://example.org/1"


@pytest.fixture(scope="module")
def reader() -> RagMiddleModel:
    return RagMiddleModel.from_pretrained(reader_path())


@pytest.fixture
def model(reader: RagMiddleModel) -> ChatRagMiddle:
    return ChatRagMiddle(model=reader, method="pine", max_tokens=16)


def test_documents_may_come_in_the_extra_body(model: ChatRagMiddle) -> None:
    entries = [{"text": text, "id": title} for title, text in TEXTS.items()]
    bound = model.bind(extra_body={"documents": entries})
    answer = bound.invoke(QUESTION)
    assert answer.content.strip() == world.ANSWER
    assert answer.response_metadata["rag_middle"]["documents"] == len(TEXTS)
    with pytest.raises(UnsupportedGenerationError, match="documents was given"):
        bound.invoke(QUESTION, documents=entries)
    llm = RagMiddleLLM(model=model.rag_middle_model)
    with pytest.raises(UnsupportedGenerationError, match="format_docs"):
        llm.invoke(QUESTION, extra_body={"documents": entries})
    with pytest.raises(UnsupportedGenerationError, match="format_docs"):
        llm.invoke(QUESTION, documents=[Document("a")])


def annotations(message: Any) -> list[dict[str, Any]]:
    [block] = message.content_blocks
    assert block["type"] == "text"
    return [dict(annotation) for annotation in block.get("annotations", [])]


def test_citations_are_annotations_of_content_blocks(model: ChatRagMiddle) -> None:
    # Titles are read on a line before the text.
    documents = [
        Document(text, id="d", metadata={"title": title, "source": ADDRESS})
        for title, text in TEXTS.items()
    ]
    answer = model.invoke(QUESTION, documents=documents)
    [citation] = annotations(answer)
    start, end = citation["start_index"], citation["end_index"]
    assert answer.content[start:end] == citation["title"] == world.NAME
    assert citation["cited_text"] == TEXTS[world.NAME]
    assert citation["url"] == ADDRESS
    assert citation["extras"]["document_id"] == "d"
    assert StrOutputParser().invoke(answer) == answer.content
    whole = AIMessageChunk(content="")
    for chunk in model.stream(QUESTION, documents=documents):
        whole += chunk
    assert annotations(whole) == [citation]
