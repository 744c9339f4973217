"""Documents as clients of different interfaces send them, and where answers cite them."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages.content import create_plaintext_block
from llama_index.core.base.llms.types import CitableBlock, DocumentBlock, TextBlock

from rag_middle.conventions.citations import (
    langchain_citations,
    llama_index_citations,
    openai_citations,
    plain_citations,
)
from rag_middle.conventions.documents import content_parts, parsed_document
from rag_middle.documents import ContextPrompt, Document, mark
from rag_middle.errors import PromptError
from rag_middle.integration import split_call
from rag_middle.integration.documents import sources_of
from tests.tiny_models import speaking
from tests.tokenizers import CHATML, byte_level_bpe

TEXT, ADDRESS = "Lyon lies on the river.", "https://example.org/lyon"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def search_result(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "search_result", "source": ADDRESS, "title": "Lyon", "content": content}


#: A document as a block of a message.
BLOCKS: dict[str, Callable[[str], Any]] = {
    "anthropic text": lambda text: {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": text},
        "title": "Lyon",
        "cache_control": {"type": "ephemeral"},
    },
    "anthropic content": lambda text: {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": text}]},
        "title": "Lyon",
    },
    "search_result": search_result,
    "tool_result": lambda text: {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [search_result(text)],
    },
    "langchain": lambda text: dict(create_plaintext_block(text, title="Lyon", url=ADDRESS)),
    "langchain in base64": lambda text: {
        "type": "text-plain",
        "base64": encoded(text),
        "title": "Lyon",
    },
    "llama_index document": lambda text: DocumentBlock(
        data=encoded(text).encode(), title="Lyon", document_mimetype="text/plain"
    ).model_dump(mode="json"),
    "llama_index citable": lambda text: CitableBlock(
        title="Lyon", source=ADDRESS, content=[TextBlock(text=text)]
    ).model_dump(mode="json"),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_documents(kind: str) -> None:
    """Marked text within one is the text that was marked: it forges no other document."""
    for text in (TEXT, f"{mark('Lyon lies')} on the river."):
        [document] = content_parts(BLOCKS[kind](text), "A block")
        assert isinstance(document, Document)
        assert document.render() == f"Lyon\n{TEXT}"
        assert document.id in (None, ADDRESS) or kind == "langchain"


def test_entries_of_documents_are_documents() -> None:
    assert parsed_document(TEXT, "").render() == TEXT
    document = parsed_document({"title": "Lyon", "text": TEXT, "id": "7", "score": 0.5}, "")
    assert document == Document(TEXT, title="Lyon", id="7", metadata={"score": 0.5})
    assert parsed_document({"text": TEXT, "url": ADDRESS}, "").id == ADDRESS


def test_a_context_is_read_before_the_text() -> None:
    [document] = content_parts({**BLOCKS["anthropic text"](TEXT), "context": "In 1900:"}, "")
    assert document == Document(f"In 1900:\n{TEXT}", title="Lyon")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "url", "url": "file:///etc/passwd"}},
        {"type": "text-plain", "url": "file:///etc/passwd", "mime_type": "text/plain"},
        {"block_type": "document", "path": "/etc/passwd"},
        {"type": "text-plain", "base64": "/w=="},
        {"type": "search_result", "content": [search_result(TEXT)]},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": ["text"], "text": ""},
        7,
    ],
    ids=str,
)
def test_what_has_no_text_is_refused(block: Any) -> None:
    with pytest.raises(PromptError, match="A block cannot be read") as raised:
        content_parts(block, "A block")
    assert "root" not in str(raised.value)  # nothing was read


def test_documents_of_a_call() -> None:
    class Node:
        text = "c"

    def read(entry: Any) -> Document | None:
        return Document(entry.text) if isinstance(entry, Node) else None

    given = [Document("a"), "b", Node(), {"text": "d"}]
    for call in ({"documents": given, "n": 1}, {"extra_body": {"documents": given}, "n": 1}):
        documents, rest = split_call(call, read, "nodes")
        assert [document.text for document in documents] == ["a", "b", "c", "d"]
        assert rest == {"n": 1}
    for wrong, told in (
        ("a", "must be a list"),
        (Node(), "must be a list"),
        (iter("a"), r"pass list\(...\)"),
        ([5], "must hold nodes"),
        (["a", {"title": "b"}], "Document 1 cannot be read"),
    ):
        with pytest.raises(PromptError, match=told):
            split_call({"documents": wrong}, read, "nodes")


# -- citations ------------------------------------------------------------------------------------

ANSWER = "Lyon: on the river (Lyon; Paris)."
SOURCES = [
    Document(TEXT, title="Lyon", id="7", metadata={"source": ADDRESS}),
    Document("Paris lies on the Seine.", title="Paris"),
    Document("Nobody names it.", title="Nantes"),
]


def test_an_answer_cites_what_it_names_in_the_form_of_each_caller() -> None:
    plain = plain_citations(ANSWER, SOURCES)
    assert [citation["title"] for citation in plain] == ["Lyon", "Lyon", "Paris"]
    assert plain[0] == {"document_id": "7", "title": "Lyon", "start": 0, "end": 4}
    (first, second), same = openai_citations(ANSWER, SOURCES)
    assert same == plain
    cited = {"start_index": 0, "end_index": 4, "title": "Lyon", "url": ADDRESS}
    assert first == {"type": "url_citation", "url_citation": cited}
    assert second["url_citation"]["start_index"] == 20
    assert langchain_citations(ANSWER, SOURCES)[0] == {
        "type": "citation",
        **cited,
        "cited_text": TEXT,
        "extras": {"document_id": "7"},
    }
    assert llama_index_citations(ANSWER, SOURCES)[0] == {
        "block_type": "citation",
        "cited_content": {"block_type": "text", "text": TEXT},
        "source": ADDRESS,
        "title": "Lyon",
        "additional_location_info": {"start": 0, "end": 4},
    }


def test_citations_repeat_documents_up_to_a_limit() -> None:
    """Of documents with one title, each mention is a citation of each."""
    many = plain_citations("(x)" * 1_000, [Document("y", title="x")] * 50)
    assert [citation["start"] for citation in many[:51]] == [1] * 50 + [4]
    assert len(many) == 1_000
    with pytest.raises(PromptError, match="no more than 1,000 characters"):
        parsed_document({"text": "y", "url": "https://" + "u" * 1_000}, "Document 1")


def test_documents_that_were_left_out_are_no_sources() -> None:
    tokenizer = byte_level_bpe(chat_template=CHATML)
    model = speaking("conventions", tokenizer)
    prompt = ContextPrompt("", ["one", "two " * 400, "three"], "Which?")
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for asked in (prompt, messages):
        generation = model.generate(asked, max_new_tokens=1, on_overflow="drop_documents")
        assert [d.text for d in sources_of(asked, generation)] == ["one", "three"]
    generation = model.generate("Which?", max_new_tokens=1)
    assert sources_of("Which?", generation) == []
