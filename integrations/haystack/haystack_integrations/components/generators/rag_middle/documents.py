"""Documents of Haystack on their way to the model: as objects, or as marked text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from haystack import Document, component

from rag_middle import Document as PromptDocument
from rag_middle import PromptError, mark, unmark


@component
class DocumentMarker:
    """Marks documents, so that they are still documents behind a prompt builder.

    It goes between the retriever (or ranker) and the builder, whose template stays as it is::

        pipeline.connect("retriever.documents", "marker.documents")
        pipeline.connect("marker.documents", "prompt_builder.documents")

    Between documents the template may write whitespace only. Whatever a document says, it cannot
    open or close one itself: look-alikes of the markers are escaped.

    Args:
        meta_fields: names in `Document.meta` whose values are written before the text, each on a
            line of its own, where a document has them.
    """

    def __init__(self, meta_fields: list[str] | None = None) -> None:
        self.meta_fields = meta_fields

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Copies of the documents with marked contents; one that is marked already stays so.

        Raises:
            PromptError: a document has no text.
        """
        texts = map(mark, prompt_documents(documents, self.meta_fields or ()))
        return {
            "documents": [
                replace(document, content=text)
                for document, text in zip(documents, texts, strict=True)
            ]
        }


def prompt_documents(
    documents: Sequence[Document], meta_fields: Sequence[str]
) -> list[PromptDocument]:
    """The documents for a prompt, with their ids, scores and metadata.

    Args:
        documents: in the order in which the model reads them.
        meta_fields: as of `DocumentMarker`.

    Raises:
        PromptError: something else than documents, or one without text.
    """
    converted = []
    for index, document in enumerate(documents):
        content = getattr(document, "content", None)
        if not isinstance(document, Document) or content is None:
            raise PromptError(
                f"Document {index} has no text: got {document!r:.100}. Convert files to "
                "documents with content before they are indexed."
            )
        values = [document.meta.get(name) for name in meta_fields]
        lines = [str(value) for value in values if value is not None]
        score = {} if document.score is None else {"score": document.score}
        converted.append(
            PromptDocument(
                "\n".join([*lines, unmark(content)]),
                id=document.id,
                metadata={**document.meta, **score},
            )
        )
    return converted
