"""Documents on their way to the model: marked text, so that they are still documents there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from numbers import Real
from typing import Any, Self

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.prompts import PromptTemplate, StringPromptTemplate
from langchain_core.prompts.string import PromptTemplateFormat
from pydantic import ConfigDict, Field, model_validator

from rag_middle import Document as PromptDocument
from rag_middle import PromptError, mark, unmark
from rag_middle.integration import marked_text


class DocumentPrompt(StringPromptTemplate):
    """Writes a document so that the model can tell where it begins and ends.

    Pass it wherever LangChain takes a ``document_prompt``::

        create_stuff_documents_chain(model, prompt, document_prompt=DocumentPrompt())
        create_retriever_tool(retriever, "search", "...", document_prompt=DocumentPrompt())
        RetrievalQA.from_chain_type(
            model, retriever=retriever, chain_type_kwargs={"document_prompt": DocumentPrompt()}
        )

    The documents that chains return stay as they were. Whatever a document says, it cannot open or
    close a document itself: look-alikes of the markers are escaped.

    Attributes:
        template: how the document reads: ``"{page_content}"``, or with names of metadata that all
            documents have, such as ``"{title}\\n{page_content}"``.
        template_format: of the template: ``"f-string"``, ``"jinja2"`` or ``"mustache"``.
    """

    model_config = ConfigDict(extra="forbid")

    input_variables: list[str] = Field(default_factory=list)  # found in the template
    template: str = "{page_content}"
    template_format: PromptTemplateFormat = "f-string"

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where ``langchain_core.load.load`` finds the class."""
        return cls.__module__.split(".")

    @model_validator(mode="after")
    def _find_variables(self) -> Self:
        self.input_variables = _template(self.template, self.template_format).input_variables
        return self

    @property
    def _prompt_type(self) -> str:
        return "rag-middle-document"

    def text(self, **variables: Any) -> str:
        """The document as it reads, without markers; line ends around it are kept."""
        return _template(self.template, self.template_format).format(**variables)

    def format(self, **kwargs: Any) -> str:
        """The document between markers.

        Args:
            kwargs: ``page_content`` and metadata, by name.
        """
        return _marked_once(self.text(**kwargs))

    def document(self, document: Document) -> PromptDocument:
        """The document for a prompt of rag-middle; its id and metadata come along.

        Raises:
            PromptError: the template names metadata that the document does not have.
        """
        values = {**document.metadata, "page_content": document.page_content}
        missing = [name for name in self.input_variables if name not in values]
        if missing:
            raise PromptError(
                f"The template {self.template!r} needs {', '.join(missing)}, which this document "
                f"does not have: its metadata has {', '.join(document.metadata) or 'nothing'}."
            )
        # Chains have documents marked (`MarkDocuments`): as an object, one needs no markers.
        text = unmark(self.text(**{name: values[name] for name in self.input_variables}))
        return PromptDocument(text, id=document.id, metadata=document.metadata)


def as_document(entry: object) -> Document | None:
    """A document of LangChain, also as `model_dump` or `dumpd` writes it, or in a pair with its
    score; None of anything else.
    """
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Real | None):
        return as_document(entry[0])  # without the score, which may be a distance
    if isinstance(entry, Mapping):
        fields = entry.get("kwargs") if entry.get("type") == "constructor" else entry
        if not isinstance(fields, Mapping) or not isinstance(fields.get("page_content"), str):
            return None
        metadata = fields.get("metadata") or {}
        return Document(fields["page_content"], id=fields.get("id"), metadata=metadata)
    return entry if isinstance(entry, Document) else None


def format_docs(
    documents: Iterable[Document | tuple[Document, float] | str],
    *,
    numbered: bool = False,
    source: str | None = None,
    document_prompt: DocumentPrompt | None = None,
    separator: str = "\n\n",
) -> str:
    """Documents as one marked text, for LCEL chains and prompts made by functions.

    ::

        {"context": retriever | format_docs, "question": RunnablePassthrough()} | prompt | model

    Args:
        documents: in the order in which the model shall read them; also pairs with a score, as
            ``similarity_search_with_score`` gives them, and strings.
        numbered: write ``[1]``, ``[2]``, ... into them. The order then shows in the text, so that
            a method whose answers do not depend on it (`Method.order_free`) cannot keep its
            promise: `NumberedDocumentsWarning`. Prefer `source`.
        source: metadata to write into each in parentheses, or ``"id"`` for `Document.id`. With
            titles, models that are asked to cite them name them in a form that is found again.
        document_prompt: how each reads; by default its ``page_content``.
        separator: between documents: whitespace or signs (``---``).

    Raises:
        PromptError: a document does not have this `source`, or is none; the separator has words.

    Warns:
        MissingDocumentsWarning: there are none.
    """
    prompt = DocumentPrompt() if document_prompt is None else document_prompt
    read = [prompt.document(_given_document(entry)) for entry in documents]
    return marked_text(read, "format_docs", numbered=numbered, source=source, separator=separator)


def _given_document(entry: Any) -> Document:
    document = Document(entry) if isinstance(entry, str) else as_document(entry)
    if document is None:
        raise PromptError(
            f"format_docs takes documents, got {type(entry).__name__}: pass what the retriever "
            "returned."
        )
    return document


class MarkDocuments(BaseDocumentTransformer):
    """Marks the text of documents, for where only a transformer of documents can be put.

    It goes last into a ``DocumentCompressorPipeline``, where ``LongContextReorder`` would go. The
    documents that a chain returns then have the markers in their text; where a chain takes a
    ``document_prompt``, `DocumentPrompt` leaves them clean.

    Args:
        document_prompt: how each document reads; by default its ``page_content``.
    """

    def __init__(self, document_prompt: DocumentPrompt | None = None) -> None:
        self.document_prompt = DocumentPrompt() if document_prompt is None else document_prompt

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """Copies of the documents, marked; a document that is marked already stays so."""
        return [
            each.model_copy(
                update={"page_content": _marked_once(self.document_prompt.document(each).text)}
            )
            for each in documents
        ]


def _marked_once(text: str) -> str:
    """The text marked as one document; what is marked in it already loses its markers."""
    return mark(unmark(text))


@cache
def _template(template: str, template_format: PromptTemplateFormat) -> PromptTemplate:
    return PromptTemplate.from_template(template, template_format=template_format)


class LongContextReorder(BaseDocumentTransformer):
    """Puts the best documents at both ends and the worst into the middle.

    Of documents 1 (best) to 6 the model reads 1, 3, 5, 6, 4, 2. It changes what stands where, and
    not how the model reads: the baseline that a method has to beat. Methods that do not depend on
    the order (PINE) gain nothing from it.

    Documents come best first, as retrievers return them.
    """

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """The same documents in another order."""
        return [*documents[0::2], *documents[1::2][::-1]]
