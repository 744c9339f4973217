"""Documents as clients of other models send them, and the citations that come back."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM
from rag_middle import Document as PromptDocument
from rag_middle import PromptError, RagMiddleModel, UnsupportedGenerationError
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


def anthropic(name: str, **more: Any) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": written(name)}
    return {"type": "document", "source": source, "citations": {"enabled": True}, **more}


#: A document of this title, as a content block.
BLOCKS: dict[str, Any] = {
    "anthropic document": anthropic,
    "anthropic content": lambda title: {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": written(title)}]},
    },
    "search_result": lambda title: {
        "type": "search_result",
        "source": title,
        "content": [{"type": "text", "text": written(title)}],
    },
    "tool_result": lambda title: {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [anthropic(title)],
    },
    "text-plain": lambda title: {"type": "text-plain", "text": written(title)},
    "text-plain in base64": lambda title: {
        "type": "text-plain",
        "base64": base64.b64encode(written(title).encode()).decode(),
    },
    "citable": lambda title: {
        "block_type": "citable",
        "title": "",
        "source": title,
        "content": [{"block_type": "text", "text": written(title)}],
    },
    "file": lambda title: {
        "type": "file",
        "file": {"file_data": base64.b64encode(written(title).encode()).decode()},
    },
}

#: The same as an entry of ``documents``.
ENTRIES: dict[str, Any] = {
    "vllm": lambda title: {"text": written(title), "id": title},
    "cohere": lambda title: {"id": title, "data": {"snippet": written(title)}},
    "string": written,
    "langchain": lambda title: Document(written(title)),
    "rag-middle": lambda title: PromptDocument(written(title)),
}


def facts(answer: Any) -> tuple[Any, ...]:
    told = answer.response_metadata["rag_middle"]
    return answer.content.strip(), told["documents"], told["applied"]


RIGHT = ("Bramstow Melcroft: $873", 3, True)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.one_in(3)
def test_blocks_are_documents(model: ChatRagMiddle, block: Any) -> None:
    content = [*map(block, FACTS), {"type": "text", "text": QUESTION}]
    assert facts(model.invoke([HumanMessage(content)])) == RIGHT


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_of_documents_are_documents(model: ChatRagMiddle, entry: Any) -> None:
    assert facts(model.invoke(QUESTION, documents=[*map(entry, FACTS)])) == RIGHT


def test_documents_may_come_in_the_extra_body(model: ChatRagMiddle) -> None:
    entries = [*map(ENTRIES["vllm"], FACTS)]
    bound = model.bind(extra_body={"documents": entries})
    assert facts(bound.invoke(QUESTION)) == RIGHT
    with pytest.raises(UnsupportedGenerationError, match="documents was given"):
        bound.invoke(QUESTION, documents=entries)
    llm = RagMiddleLLM(model=model.rag_middle_model)
    with pytest.raises(UnsupportedGenerationError, match="format_docs"):
        llm.invoke(QUESTION, extra_body={"documents": entries})


def test_documents_of_a_chat_template_are_refused(model: ChatRagMiddle) -> None:
    entries = [*map(ENTRIES["vllm"], FACTS)]
    for options in (
        {"template_options": {"documents": entries}},
        {"extra_body": {"chat_template_kwargs": {"documents": entries}}},
    ):
        with pytest.raises(PromptError, match="must not hold documents"):
            model.invoke(QUESTION, **options)


def test_an_entry_without_text_is_named(model: ChatRagMiddle) -> None:
    with pytest.raises(PromptError, match=r"Document 1 .*cannot be read"):
        model.invoke(QUESTION, documents=["a", {"title": "b"}])


#: Documents with titles, which the model reads on a line before the text; ids and addresses.
TITLED: dict[str, Any] = {
    "langchain": lambda title: Document(
        written(title), id="d", metadata={"title": title, "source": ADDRESS}
    ),
    "vllm": lambda title: {"title": title, "text": written(title), "id": "d", "url": ADDRESS},
    "rag-middle": lambda title: PromptDocument(written(title), id=title),
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
    assert citation.get("url") == (None if kind == "rag-middle" else ADDRESS)
    assert citation["extras"]["document_id"] == ("d" if kind != "rag-middle" else citation["title"])
    assert StrOutputParser().invoke(answer) == answer.content


def test_streams_end_with_their_citations(model: ChatRagMiddle) -> None:
    documents = [*map(TITLED["langchain"], FACTS)]
    whole = AIMessageChunk(content="")
    for chunk in model.stream(QUESTION, documents=documents):
        whole += chunk
    assert annotations(whole) == annotations(model.invoke(QUESTION, documents=documents))


def test_output_version_1_has_them_in_the_content(reader: RagMiddleModel) -> None:
    model = ChatRagMiddle(model=reader, max_tokens=16, output_version="v1")
    documents = [*map(TITLED["langchain"], FACTS)]
    answer = model.invoke(QUESTION, documents=documents)
    [block] = answer.content
    assert block["annotations"][0]["title"] == "Bramstow Melcroft"
    whole = AIMessageChunk(content="")
    for chunk in model.stream(QUESTION, documents=documents):
        whole += chunk
    assert whole.content_blocks[-1]["annotations"] == block["annotations"]


def test_citations_as_anthropics_are_only_made_where_they_are_enabled(model: ChatRagMiddle) -> None:
    def answer(enabled: bool) -> Any:
        blocks = [anthropic(t, title=t, citations={"enabled": enabled}) for t in FACTS]
        return model.invoke([HumanMessage([*blocks, QUESTION])])

    assert [c["title"] for c in annotations(answer(True))] == ["Bramstow Melcroft"]
    assert annotations(answer(False)) == []


@pytest.mark.parametrize("name", [None, "page"])
def test_a_document_that_was_left_out_is_not_cited_and_the_others_are(
    reader: RagMiddleModel, name: str | None
) -> None:
    title = "Bramstow Melcroft"
    texts = [written(title), "It costs more elsewhere. " * 50]
    documents = [Document(text, id=name, metadata={"title": title}) for text in texts]
    small = RagMiddleModel(reader.model, reader.tokenizer, context_window=120)
    model = ChatRagMiddle(model=small, max_tokens=16, on_overflow="drop_documents")
    for method in ("none", "pine"):
        answer = model.invoke(QUESTION, documents=documents, method=method)
        assert answer.response_metadata["rag_middle"]["dropped_documents"]
        assert [c["cited_text"] for c in annotations(answer)] == [written(title)]


def test_a_tools_documents_are_cited(model: ChatRagMiddle) -> None:
    documents = [Document(written(title), metadata={"title": title}) for title in FACTS]
    content = "\n\n".join(document.page_content for document in documents)
    tool = ToolMessage(content, tool_call_id="1", artifact=documents)
    answer = model.invoke([tool, HumanMessage(QUESTION)])
    assert facts(answer) == RIGHT
    assert [c["title"] for c in annotations(answer)] == ["Bramstow Melcroft"]
