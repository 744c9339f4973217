"""Documents in every convention are read as documents, and cited as their caller expects."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages.content import create_plaintext_block
from llama_index.core.base.llms.types import CitableBlock, DocumentBlock
from llama_index.core.base.llms.types import TextBlock as LlamaText

from rag_middle import ContextPrompt, Document
from rag_middle.conventions.citations import citation_fields
from rag_middle.conventions.documents import (
    CallerDocument,
    caller_document,
    content_parts,
    counted,
    parsed_document,
)
from rag_middle.generation import Generation
from rag_middle.serving.prompts import chat_prompt
from rag_middle.serving.schema import ChatMessage
from tests.reader.questions import reader_question
from tests.serving.conftest import Served

QUESTION = "Which of them lies on the river?"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


#: A document as a block of a message.
BLOCKS: dict[str, Callable[[Document], Any]] = {
    "anthropic text": lambda d: {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": d.text},
        "title": d.title,
        "citations": {"enabled": True},
        "cache_control": {"type": "ephemeral"},
    },
    "anthropic content": lambda d: {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": d.text}]},
        "title": d.title,
    },
    "search_result": lambda d: {
        "type": "search_result",
        "source": f"https://example.org/{d.title}",
        "title": d.title,
        "content": [{"type": "text", "text": d.text}],
        "citations": {"enabled": True},
    },
    "tool_result": lambda d: {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [BLOCKS["search_result"](d)],
    },
    "langchain": lambda d: dict(create_plaintext_block(d.text, title=d.title)),
    "llama_index document": lambda d: DocumentBlock(
        data=encoded(d.text).encode(), title=d.title, document_mimetype="text/plain"
    ).model_dump(mode="json"),
    "llama_index citable": lambda d: CitableBlock(
        title=d.title or "", source="a book", content=[LlamaText(text=d.text)]
    ).model_dump(mode="json"),
    "openai file": lambda d: {
        "type": "file",
        "file": {
            "filename": d.title,
            "file_data": f"data:text/plain;base64,{encoded(d.text)}",
        },
    },
}

#: A document as an entry of `documents`.
ENTRIES: dict[str, Callable[[Document], Any]] = {
    "vllm": lambda d: {"title": d.title, "text": d.text},
    "cohere": lambda d: {"id": d.title, "data": {"title": d.title, "snippet": d.text}},
}


@pytest.fixture(scope="module")
def expected(server: Served, documents: list[Document]) -> Generation:
    prompt = ContextPrompt("", documents, QUESTION)
    return server.model.generate(prompt, method="pine", max_new_tokens=6)


def is_as_expected(answer: Any, expected: Generation) -> bool:
    facts = answer.rag_middle
    return (
        (facts["documents"], facts["applied"]) == (3, True)
        and answer.choices[0].message.content == expected.text
        and answer.usage.prompt_tokens == expected.usage.prompt_tokens
    )


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_blocks_are_documents(
    server: Served, documents: list[Document], expected: Generation, block: Callable[..., Any]
) -> None:
    blocks = [*map(block, documents), {"type": "text", "text": QUESTION}]
    assert is_as_expected(server.chat(blocks, method="pine", max_tokens=6), expected)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_of_documents_are_documents(
    server: Served, documents: list[Document], expected: Generation, entry: Callable[..., Any]
) -> None:
    sent = [*map(entry, documents)]
    answer = server.chat(QUESTION, documents=sent, method="pine", max_tokens=6)
    assert is_as_expected(answer, expected)


def test_texts_alone_are_documents(server: Served, documents: list[Document]) -> None:
    texts = [document.text for document in documents]
    answer = server.chat(QUESTION, documents=texts, method="pine", max_tokens=6)
    prompt = ContextPrompt("", texts, QUESTION)
    expected = server.model.generate(prompt, method="pine", max_new_tokens=6)
    assert is_as_expected(answer, expected)


def test_all_fields_of_a_cohere_document_are_read(server: Served) -> None:
    data = {"title": "Paris", "snippet": "A city.", "year": 1900, "id": "x", "url": "https://a.b"}
    answer = server.chat(QUESTION, documents=[{"data": data}], max_tokens=1)
    prompt = ContextPrompt("", [Document("year: 1900\nA city.", title="Paris")], QUESTION)
    assert answer.usage.prompt_tokens == len(server.model.encode(prompt))


def test_text_and_documents_in_any_order(server: Served, documents: list[Document]) -> None:
    first, *rest = [BLOCKS["search_result"](document) for document in documents]
    blocks = [
        {"type": "text", "text": "Read this."},
        first,
        {"type": "text", "text": "And these."},
        *rest,
        {"type": "text", "text": QUESTION},
    ]
    answer = server.chat(blocks, method="pine", max_tokens=6)
    prompt = ContextPrompt("Read this.\n\n", documents, f"And these.\n\n{QUESTION}")
    expected = server.model.generate(prompt, method="pine", max_new_tokens=6)
    assert is_as_expected(answer, expected)


def test_scores_decide_which_documents_are_dropped(
    serve: Any, server: Served, documents: list[Document]
) -> None:
    from rag_middle.generation import GenerationOptions

    small = serve(server.model, defaults=GenerationOptions(on_overflow="drop_documents"))
    sent = [
        {"text": "fox " * 90, "score": score, "title": name}
        for name, score in (("a", 0.5), ("b", 0.1), ("c", 0.9))
    ]
    answer = small.chat(QUESTION, documents=sent, max_tokens=100)
    assert answer.rag_middle["dropped_documents"] == [1]
    assert answer.rag_middle["document_order"] == [0, 2]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "url", "url": "file:///etc/passwd"}},
        {"type": "document", "source": {"type": "file", "file_id": "1"}},
        {"type": "document", "source": {"type": "base64", "data": "AA=="}},
        {"type": "text-plain", "url": "file:///etc/passwd", "mime_type": "text/plain"},
        {"block_type": "document", "path": "/etc/passwd"},
        {"block_type": "document", "url": "file:///etc/passwd"},
        {"block_type": "document", "data": "/etc/passwd"},
        {"type": "file", "file": {"file_id": "1"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": ["text"], "text": ""},
        {"text": "no type"},
        7,
    ],
    ids=str,
)
def test_what_has_no_text_is_refused(server: Served, block: Any) -> None:
    content = [block, {"type": "text", "text": QUESTION}]
    body = {"model": "tested", "messages": [{"role": "user", "content": content}]}
    response = server.post(body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("messages.0.content")
    assert "root" not in response.text  # nothing was read


def test_documents_of_an_answer_do_not_count(server: Served, documents: list[Document]) -> None:
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": [BLOCKS["langchain"](documents[0])]},
        {"role": "user", "content": [BLOCKS["langchain"](documents[1]), *BLOCK_OF_QUESTION]},
    ]
    response = server.post({"model": "tested", "messages": messages, "max_tokens": 1})
    assert response.json()["rag_middle"]["documents"] == 1


BLOCK_OF_QUESTION = [{"type": "text", "text": QUESTION}]

# --- citations: no model of random weights names a title, so these go without a server.

ANSWER = "Lyon: on the river (Lyon; Paris)."


def read(kind: str, document: Document) -> CallerDocument:
    if kind in ENTRIES:
        return parsed_document(ENTRIES[kind](document), "A document")
    [part] = content_parts(BLOCKS[kind](document), "A block")
    assert isinstance(part, Document)
    return caller_document(part)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("vllm", None),
        ("openai file", None),
        ("anthropic content", None),  # citations are not enabled there
        (
            "cohere",
            {
                "start": 0,
                "end": 4,
                "text": "Lyon",
                "sources": [
                    {
                        "type": "document",
                        "id": "Lyon",
                        "document": {
                            "id": "Lyon",
                            "title": "Lyon",
                            "text": "Lyon lies on the river.",
                        },
                    }
                ],
            },
        ),
        (
            "anthropic text",
            {
                "type": "char_location",
                "cited_text": "Lyon lies on the river.",
                "document_index": 1,
                "document_title": "Lyon",
                "start_char_index": 0,
                "end_char_index": 23,
            },
        ),
        (
            "search_result",
            {
                "type": "search_result_location",
                "cited_text": "Lyon lies on the river.",
                "source": "https://example.org/Lyon",
                "title": "Lyon",
                "search_result_index": 1,
                "start_block_index": 0,
                "end_block_index": 1,
            },
        ),
        (
            "langchain",
            {
                "type": "citation",
                "title": "Lyon",
                "url": None,
                "start_index": 0,
                "end_index": 4,
                "cited_text": "Lyon lies on the river.",
            },
        ),
        (
            "llama_index citable",
            {
                "block_type": "citation",
                "cited_content": {"block_type": "text", "text": "Lyon lies on the river."},
                "source": "a book",
                "title": "Lyon",
                "additional_location_info": {"start": 0, "end": 4},
            },
        ),
    ],
)
def test_citations_are_in_the_callers_convention(
    documents: list[Document], kind: str, first: Any
) -> None:
    sources = counted(read(kind, document) for document in documents)
    fields = citation_fields(ANSWER, sources, wanted=True)
    citations = fields.get("citations")
    assert (citations and citations[0]) == first
    if citations:
        assert len(citations) == 3  # Lyon, Lyon, Paris
    assert citation_fields(ANSWER, sources, wanted=False) == {}


@pytest.mark.parametrize(
    "large",
    [
        {"title": "Lyon", "text": "", "url": "https://example.org/" + "u" * 400_000},
        {"data": {"title": "Lyon", "text": ""}, "id": "i" * 400_000},
        {"data": {"title": "Lyon", "text": "t" * 900_000}},
        {"data": {"title": "Lyon" + " " * 400_000, "text": ""}},
    ],
    ids=["address", "id", "text", "title"],
)
def test_citations_repeat_documents_up_to_a_limit(large: Any) -> None:
    sources = [parsed_document(large, "A document")]
    [once] = citation_fields("(Lyon)", sources, wanted=True).values()
    [often] = citation_fields("(Lyon) " * 100, sources, wanted=True).values()
    assert often[:1] == once
    assert len(str(often)) < 2_000_000


@pytest.mark.timeout(5)  # of documents with one title, each mention is a citation of each
def test_many_documents_of_one_title_have_so_many_citations_as_a_reply_may_hold() -> None:
    document = parsed_document({"data": {"title": "x", "text": "y"}}, "A document")
    fields = citation_fields("(x)" * 10_000, [document] * 300, wanted=True)
    places = [(citation["start"], citation["end"]) for citation in fields["citations"]]
    assert places[:301] == [(1, 2)] * 300 + [(4, 5)]
    assert 3_000 < len(places) < 4_097


def test_documents_with_an_address_are_annotations(documents: list[Document]) -> None:
    fields = citation_fields(
        ANSWER, [read("search_result", document) for document in documents], wanted=True
    )
    assert fields["annotations"][2] == {
        "type": "url_citation",
        "url_citation": {
            "start_index": 26,
            "end_index": 31,
            "title": "Paris",
            "url": "https://example.org/Paris",
        },
    }
    assert ANSWER[26:31] == "Paris"


def test_citations_count_all_documents_of_the_request(documents: list[Document]) -> None:
    def block(title: str) -> dict[str, Any]:
        source = {"type": "text", "media_type": "text/plain", "data": f"{title}'s text."}
        enabled = {"citations": {"enabled": True}}
        return {"type": "document", "source": source, "title": title, **enabled}

    def asked(*blocks: Any) -> ChatMessage:
        return ChatMessage(role="user", content=[*blocks, {"type": "text", "text": "Which?"}])

    turns = [asked(block("Nantes"), block("Lyon")), asked(block("Paris"))]
    answered = ChatMessage(role="assistant", content="That one.")
    later = chat_prompt([turns[0], answered, turns[1]], [], trusted=False)
    [paris] = citation_fields("(Paris)", later.documents, wanted=True)["citations"]
    assert (
        paris["document_index"] == 2
    )  # documents of earlier turns count, though nobody reads them
    both = chat_prompt([turns[0]], [], trusted=False).documents
    [lyon] = citation_fields("(Lyon)", (None, both[1]), wanted=True)["citations"]
    assert lyon["document_index"] == 1  # and so do those for which there was no room

    system = ChatMessage(role="system", content=[block("Nantes")])
    passed = [
        parsed_document({"data": {"title": title, "text": "."}}, "A document")
        for title in ("Lyon", "Paris")
    ]
    prompt = chat_prompt([system, asked()], passed, trusted=False)
    assert len(prompt.documents) == 3
    [paris] = citation_fields("(Paris)", prompt.documents, wanted=True)["citations"]
    assert paris["sources"][0]["id"] == "doc:1"


@pytest.mark.parametrize("stream", [False, True])
def test_the_readers_answers_come_with_citations(reader_server: Served, stream: bool) -> None:
    prompt, _ = reader_question(2)
    documents = [
        {"id": str(index), "data": {"title": document.id, "text": document.text}}
        for index, document in enumerate(prompt.documents)
    ]
    answer = reader_server.chat(prompt.suffix, documents=documents, stream=stream)
    if stream:
        [citations] = [
            chunk.choices[0].delta.citations
            for chunk in answer
            if getattr(chunk.choices[0].delta, "citations", None)
        ]
    else:
        citations = answer.choices[0].message.citations
    assert citations[0]["sources"][0]["id"] == "3"
    off = reader_server.chat(prompt.suffix, documents=documents, citation_options={"mode": "OFF"})
    assert not hasattr(off.choices[0].message, "citations")
