"""Citations, each in the convention in which its document was sent.

An answer cites a document where it names the document's title, or its id where it has none, in
parentheses or before a colon (`rag_middle.answering.results.cites`). That says what the model
claims, not that it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from rag_middle.answering.results import mentions
from rag_middle.conventions.documents import CallerDocument, Convention

#: Characters of the citations of one answer. Each has its document's text, name and address, of
#: which a request holds megabytes, and an answer has a citation every few tokens, of any number of
#: documents with one title.
_MOST_REPEATED = 1 << 20
_CHARACTERS_OF_ITSELF = 256


@dataclass(frozen=True, slots=True)
class _Citation:
    """The title of a document in an answer; `index` is the document's."""

    answer: str
    start: int
    end: int
    source: CallerDocument
    index: int

    @property
    def repeated(self) -> int:
        """Characters that it adds to a reply, about."""
        source = self.source
        names = (source.id, source.source, source.title)
        repeated = len(source.document.text) + 2 * sum(len(name or "") for name in names)
        return _CHARACTERS_OF_ITSELF + repeated


def citation_fields(
    answer: str, documents: Sequence[CallerDocument | None], *, wanted: bool
) -> dict[str, Any]:
    """What a message says of the documents that it names.

    Returns:
        ``annotations`` (OpenAI's, for documents with an address) and ``citations`` (in the
        conventions of the documents), each left out where it would be empty. They end where they
        would have more than 1,048,576 characters: each 256, and what it repeats of its document.
    """
    if not wanted:
        return {}
    citations: list[_Citation] = []
    room = _MOST_REPEATED
    for citation in _in_answer(answer, documents):
        room -= citation.repeated
        if room < 0:
            break
        citations.append(citation)
    annotations = [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": citation.start,
                "end_index": citation.end,
                "title": citation.source.title,
                "url": citation.source.url,
            },
        }
        for citation in citations
        if citation.source.url is not None
    ]
    forms = [(citation, _FORMATS.get(citation.source.convention)) for citation in citations]
    fields = {
        "annotations": annotations,
        "citations": [form(citation) for citation, form in forms if form is not None],
    }
    return {name: value for name, value in fields.items() if value}


def langchain_citations(answer: str, documents: Iterable[CallerDocument]) -> list[dict[str, Any]]:
    """Citations as LangChain's annotations, whatever way the documents came; ids in ``extras``."""
    found = []
    for citation in _in_answer(answer, tuple(documents)):
        fields = {**_langchain(citation), "extras": {"document_id": citation.source.name}}
        found.append({name: value for name, value in fields.items() if value is not None})
    return found


def llama_index_citations(answer: str, documents: Iterable[CallerDocument]) -> list[dict[str, Any]]:
    """Citations as LlamaIndex's ``CitationBlock``, whatever way the documents came."""
    return [_llama_index(citation) for citation in _in_answer(answer, tuple(documents))]


def plain_citations(answer: str, documents: Iterable[CallerDocument]) -> list[dict[str, Any]]:
    """Citations for a framework that has no form of its own: which document, and where."""
    return [
        {
            "document_id": citation.source.name,
            "title": citation.source.title,
            "start": citation.start,
            "end": citation.end,
        }
        for citation in _in_answer(answer, tuple(documents))
    ]


def _in_answer(answer: str, documents: Sequence[CallerDocument | None]) -> Iterator[_Citation]:
    """Every mention of a title, in the order of the answer."""

    def of(index: int, source: CallerDocument) -> Iterator[_Citation]:
        for start, end in mentions(answer, source.title):
            yield _Citation(answer, start, end, source, index)

    found = [
        of(index, source)
        for index, source in enumerate(documents)
        if source is not None and source.cited  # None: marked text, whose title is part of it
    ]
    return merge(*found, key=lambda citation: (citation.start, citation.index))


def _cohere(citation: _Citation) -> dict[str, Any]:
    document, name = citation.source.document, citation.source.id or f"doc:{citation.source.number}"
    shown = {"id": name, "title": document.title, "text": document.text}
    return {
        "start": citation.start,
        "end": citation.end,
        "text": citation.answer[citation.start : citation.end],
        "sources": [{"type": "document", "id": name, "document": shown}],
    }


def _anthropic(citation: _Citation) -> dict[str, Any]:
    """All of a document: an answer names it as a whole."""
    source = citation.source
    text, last = "".join(source.blocks), len(source.blocks)
    if source.convention == "search_result":
        return {
            "type": "search_result_location",
            "cited_text": text,
            "source": source.source,
            "title": source.title,
            "search_result_index": source.number,
            "start_block_index": 0,
            "end_block_index": last,
        }
    kind, unit, last = (
        ("char_location", "char", len(text))
        if source.convention == "anthropic_text"
        else ("content_block_location", "block", last)
    )
    return {
        "type": kind,
        "cited_text": text,
        "document_index": source.number,
        "document_title": source.title,
        f"start_{unit}_index": 0,
        f"end_{unit}_index": last,
    }


def _langchain(citation: _Citation) -> dict[str, Any]:
    return {
        "type": "citation",
        "title": citation.source.title,
        "url": citation.source.url,
        "start_index": citation.start,
        "end_index": citation.end,
        "cited_text": citation.source.cited_text,
    }


def _llama_index(citation: _Citation) -> dict[str, Any]:
    return {
        "block_type": "citation",
        "cited_content": {"block_type": "text", "text": citation.source.document.text},
        "source": citation.source.source or "",
        "title": citation.source.title,
        "additional_location_info": {"start": citation.start, "end": citation.end},
    }


_FORMATS: dict[Convention, Callable[[_Citation], dict[str, Any]]] = {
    "cohere": _cohere,
    "anthropic_text": _anthropic,
    "anthropic_blocks": _anthropic,
    "search_result": _anthropic,
    "langchain": _langchain,
    "llama_index": _llama_index,
}
