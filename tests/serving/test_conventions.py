"""Documents and citations over HTTP; each convention is tested in tests/conventions."""

from typing import Any

import pytest

from rag_middle import ContextPrompt, Document
from rag_middle.generation import GenerationOptions
from tests.reader.questions import reader_question
from tests.serving.conftest import Serve, Served

QUESTION = "Which of them lies on the river?"
QUESTION_BLOCK = {"type": "text", "text": QUESTION}


def block(document: Document) -> dict[str, Any]:
    content = [{"type": "text", "text": document.text}]
    return {"type": "search_result", "source": "a", "title": document.title, "content": content}


def test_text_and_documents_in_any_order(server: Served, documents: list[Document]) -> None:
    first, *rest = map(block, documents)
    read, more = ({"type": "text", "text": text} for text in ("Read this.", "And these."))
    blocks = [read, first, more, *rest, QUESTION_BLOCK]
    answer = server.chat(blocks, method="pine", max_tokens=6)
    prompt = ContextPrompt("Read this.\n\n", documents, f"And these.\n\n{QUESTION}")
    expected = server.model.generate(prompt, method="pine", max_new_tokens=6)
    assert (answer.rag_middle["documents"], answer.rag_middle["applied"]) == (3, True)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


@pytest.mark.thorough
def test_scores_decide_which_documents_are_dropped(serve: Serve, server: Served) -> None:
    small = serve(server.model, defaults=GenerationOptions(on_overflow="drop_documents"))
    sent = [
        {"text": "fox " * 90, "score": score, "title": name}
        for name, score in (("a", 0.5), ("b", 0.1), ("c", 0.9))
    ]
    answer = small.chat(QUESTION, documents=sent, max_tokens=100)
    assert answer.rag_middle["dropped_documents"] == [1]
    assert answer.rag_middle["document_order"] == [0, 2]


def test_documents_of_an_answer_do_not_count(server: Served, documents: list[Document]) -> None:
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": [block(documents[0])]},
        {"role": "user", "content": [block(documents[1]), QUESTION_BLOCK]},
    ]
    response = server.post({"model": "tested", "messages": messages, "max_tokens": 1})
    assert response.json()["rag_middle"]["documents"] == 1


def test_what_has_no_text_is_refused_by_its_place(server: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    messages = [{"role": "user", "content": [image, QUESTION_BLOCK]}]
    error = server.post({"model": "tested", "messages": messages}).json()["error"]
    assert error["param"].startswith("messages.0.content")
    assert "this model reads text" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_readers_answers_come_with_citations(reader_server: Served, stream: bool) -> None:
    prompt, _ = reader_question(2)
    documents = [
        {"id": str(index), "title": d.id, "text": d.text, "url": f"https://example.org/{index}"}
        for index, d in enumerate(prompt.documents)
    ]
    answer = reader_server.chat(prompt.suffix, documents=documents, stream=stream)
    said = [chunk.choices[0].delta for chunk in answer][-1] if stream else answer.choices[0].message
    fields = said.model_dump()
    [citation], [annotation] = fields["citations"], fields["annotations"]
    assert (citation["document_id"], citation["title"]) == ("3", prompt.documents[3].id)
    assert annotation["url_citation"]["url"] == "https://example.org/3"
