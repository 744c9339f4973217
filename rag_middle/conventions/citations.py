"""Citations: where an answer names the documents that it was given.

An answer cites a document where it names the document's title, or its id where it has none, in
parentheses or before a colon (`rag_middle.answering.results.mentions`). That says what the model
claims, not that it is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from rag_middle.answering.results import mentions
from rag_middle.documents import Document

#: Citations of one answer, which may name hundreds of documents every few tokens.
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class _Citation:
    """The title of a document in an answer; `index` is the document's."""

    start: int
    end: int
    index: int
    title: str
    document: Document

    @property
    def source(self) -> str:
        """Where the document comes from, as far as its caller said."""
        source = self.document.metadata.get("source")
        return source if isinstance(source, str) else ""

    @property
    def url(self) -> str | None:
        """Its address on the web, where the source is one."""
        return self.source if self.source.startswith(("http://", "https://")) else None


def openai_citations(
    answer: str, documents: Sequence[Document]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Citations as OpenAI's annotations, of documents with an address, and `plain_citations`."""
    citations = [*_in_answer(answer, documents)]  # one search for both
    annotations = [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": citation.start,
                "end_index": citation.end,
                "title": citation.title,
                "url": citation.url,
            },
        }
        for citation in citations
        if citation.url is not None
    ]
    return annotations, [_plain(citation) for citation in citations]


def plain_citations(answer: str, documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Citations for who has no form of its own: which document, and where."""
    return [_plain(citation) for citation in _in_answer(answer, documents)]


def _plain(citation: _Citation) -> dict[str, Any]:
    return {
        "document_id": citation.document.id,
        "title": citation.title,
        "start": citation.start,
        "end": citation.end,
    }


def langchain_citations(answer: str, documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Citations as LangChain's annotations; ids in ``extras``."""
    citations = []
    for citation in _in_answer(answer, documents):
        fields = {
            "type": "citation",
            "title": citation.title,
            "url": citation.url,
            "start_index": citation.start,
            "end_index": citation.end,
            "cited_text": citation.document.text,
            "extras": {"document_id": citation.document.id},
        }
        citations.append({name: value for name, value in fields.items() if value is not None})
    return citations


def llama_index_citations(answer: str, documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Citations as LlamaIndex's ``CitationBlock``."""
    return [
        {
            "block_type": "citation",
            "cited_content": {"block_type": "text", "text": citation.document.text},
            "source": citation.source,
            "title": citation.title,
            "additional_location_info": {"start": citation.start, "end": citation.end},
        }
        for citation in _in_answer(answer, documents)
    ]


def _in_answer(answer: str, documents: Sequence[Document]) -> Iterator[_Citation]:
    """Every mention of a title, in the order of the answer, up to `_MOST`."""

    def of(index: int, document: Document) -> Iterator[_Citation]:
        names = (document.title, document.metadata.get("title"), document.id)
        title = next((str(name) for name in names if name), "")
        for start, end in mentions(answer, title):
            yield _Citation(start, end, index, title, document)

    of_each = [of(index, document) for index, document in enumerate(documents)]
    in_order = merge(*of_each, key=lambda citation: (citation.start, citation.index))
    return islice(in_order, _MOST)
