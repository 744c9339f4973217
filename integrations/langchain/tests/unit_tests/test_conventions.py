"""Documents as clients of other models send them, and the citations that come back."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk
from langchain_core.output_parsers import StrOutputParser

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM
from rag_middle import RagMiddleModel, UnsupportedGenerationError
from tests.reader import reader_path

FACTS = {
    "Aldgrove Harfield": "Aldgrove Harfield costs $41.",
    "Bramstow Melcroft": "Bramstow Melcroft costs $873.",
    "Cranport Tolworth": "Cranport Tolworth costs $256.",
}
QUESTION = "Question: How much does Bramstow Melcroft cost?\nAnswer:"
ADDRESS = "https://example.org/1"


@pytest.fixture(scope="module")
def reader() -> RagMiddleModel:
    return RagMiddleModel.from_pretrained(reader_path())


@pytest.fixture
def model(reader: RagMiddleModel) -> ChatRagMiddle:
    return ChatRagMiddle(model=reader, method="pine", max_tokens=16)


def written(title: str) -> str:
    return f"({title}) {FACTS[title]}"


#: A document of this title, as an entry of ``documents``; other forms: tests/conventions.
ENTRIES: dict[str, Any] = {
    "vllm": lambda title: {"text": written(title), "id": title},
    "langchain": lambda title: Document(written(title)),
}


def facts(answer: Any) -> tuple[Any, ...]:
    told = answer.response_metadata["rag_middle"]
    return answer.content.strip(), told["documents"], told["applied"]


RIGHT = ("Bramstow Melcroft: $873", 3, True)


def test_documents_may_come_in_the_extra_body(model: ChatRagMiddle) -> None:
    entries = [*map(ENTRIES["vllm"], FACTS)]
    bound = model.bind(extra_body={"documents": entries})
    assert facts(bound.invoke(QUESTION)) == RIGHT
    with pytest.raises(UnsupportedGenerationError, match="documents was given"):
        bound.invoke(QUESTION, documents=entries)
    llm = RagMiddleLLM(model=model.rag_middle_model)
    with pytest.raises(UnsupportedGenerationError, match="format_docs"):
        llm.invoke(QUESTION, extra_body={"documents": entries})
    with pytest.raises(UnsupportedGenerationError, match="format_docs"):
        llm.invoke(QUESTION, documents=[Document("a")])


#: Documents with titles, which the model reads on a line before the text; ids and addresses.
TITLED: dict[str, Any] = {
    "langchain": lambda title: Document(
        written(title), id="d", metadata={"title": title, "source": ADDRESS}
    ),
    "vllm": lambda title: {"title": title, "text": written(title), "id": "d", "url": ADDRESS},
}


def annotations(message: Any) -> list[dict[str, Any]]:
    [block] = message.content_blocks
    assert block["type"] == "text"
    return [dict(annotation) for annotation in block.get("annotations", [])]


@pytest.mark.parametrize("kind", TITLED)
def test_citations_are_annotations_of_content_blocks(model: ChatRagMiddle, kind: str) -> None:
    answer = model.invoke(QUESTION, documents=[*map(TITLED[kind], FACTS)])
    [citation] = annotations(answer)
    start, end = citation["start_index"], citation["end_index"]
    assert answer.content[start:end] == citation["title"] == "Bramstow Melcroft"
    assert citation["cited_text"] == written("Bramstow Melcroft")
    assert citation["url"] == ADDRESS
    assert citation["extras"]["document_id"] == "d"
    assert StrOutputParser().invoke(answer) == answer.content


def test_streams_end_with_their_citations(model: ChatRagMiddle) -> None:
    documents = [*map(TITLED["langchain"], FACTS)]
    whole = AIMessageChunk(content="")
    for chunk in model.stream(QUESTION, documents=documents):
        whole += chunk
    assert annotations(whole) == annotations(model.invoke(QUESTION, documents=documents))
