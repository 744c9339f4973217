"""Documents as marked text."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.load import dumpd, load
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate, format_document

from langchain_rag_middle import DocumentPrompt, LongContextReorder, MarkDocuments, format_docs
from langchain_rag_middle.documents import as_document
from rag_middle import PromptError, parse
from rag_middle.notices import MissingDocumentsWarning

pytestmark = pytest.mark.anyio


def texts(marked: str) -> list[str]:
    return [document.text for document in parse(marked).documents]


FORMATS = {"f-string": "{%s}", "jinja2": "{{ %s }}", "mustache": "{{{%s}}}"}


@pytest.mark.parametrize("template_format", FORMATS)
def test_metadata_can_stand_inside_the_document_and_markers_survive_templates(
    rivers: list[Document], template_format: Any
) -> None:
    def field(name: str) -> str:
        return FORMATS[template_format] % name

    template = f"({field('title')}) {field('page_content')}"
    prompt = DocumentPrompt(template=template, template_format=template_format)
    assert sorted(prompt.input_variables) == ["page_content", "title"]
    expected = [f"({document.metadata['title']}) {document.page_content}" for document in rivers]
    assert texts(format_document(rivers[1], prompt)) == expected[1:2]

    asked = f"Read: {field('context')}\n\nQuestion: {field('question')}"
    values = {"context": format_docs(rivers, document_prompt=prompt), "question": "Which?"}
    as_text = PromptTemplate.from_template(asked, template_format=template_format)
    as_chat = ChatPromptTemplate.from_template(asked, template_format=template_format)
    for text in (as_text.format(**values), as_chat.format_messages(**values)[0].content):
        assert texts(text) == expected


def test_the_transformer_marks_copies(rivers: list[Document]) -> None:
    marked = MarkDocuments().transform_documents(rivers)
    assert [texts(each.page_content) for each in marked] == [[d.page_content] for d in rivers]
    assert [(each.id, each.metadata) for each in marked] == [(d.id, d.metadata) for d in rivers]
    assert "[[/rm:doc]]" not in rivers[0].page_content


def test_marking_twice_is_marking_once(rivers: list[Document]) -> None:
    once = MarkDocuments().transform_documents(rivers)
    assert MarkDocuments().transform_documents(once) == once
    assert format_docs(once) == format_docs(rivers)
    assert format_document(once[0], DocumentPrompt()) == once[0].page_content


def test_documents_are_called_by_their_source_or_numbered() -> None:
    documents = [Document("a", id="7", metadata={"title": "A"}), Document("b", id="8")]
    texts = [document.text for document in parse(format_docs(documents, source="id")).documents]
    assert texts == ["(7) a", "(8) b"]
    text = format_docs(documents[:1], numbered=True, source="title")
    assert [document.text for document in parse(text).documents] == ["[1] (A) a"]
    with pytest.raises(PromptError, match="no 'title' to be called by: it has id"):
        format_docs(documents, source="title")


def test_pairs_with_scores_and_strings_are_documents_too(rivers: list[Document]) -> None:
    with_scores = [(document, 0.5) for document in rivers]
    assert format_docs(with_scores) == format_docs(rivers)
    assert as_document((rivers[0], rivers[1])) is None  # two documents
    assert texts(format_docs(["a", "b"])) == ["a", "b"]
    with pytest.raises(PromptError, match="got int"):
        format_docs([3])  # type: ignore[list-item]


def test_no_documents_at_all_is_said() -> None:
    with pytest.warns(MissingDocumentsWarning, match="retrieval found nothing") as warned:
        assert format_docs([]) == ""
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
def test_a_document_prompt_is_loaded_as_it_was_saved() -> None:
    prompt = DocumentPrompt(template="{title}: {page_content}")
    ours = ["langchain_rag_middle"]
    assert load(dumpd(prompt), allowed_objects=[DocumentPrompt], valid_namespaces=ours) == prompt


@pytest.mark.parametrize(
    ("count", "order"), [(0, ""), (1, "1"), (2, "12"), (5, "13542"), (6, "135642")]
)
def test_the_baseline_puts_the_best_at_both_ends(count: int, order: str) -> None:
    best_first = [Document(str(n)) for n in range(1, count + 1)]
    reordered = LongContextReorder().transform_documents(best_first)
    assert "".join(document.page_content for document in reordered) == order
