"""Documents as clients of different interfaces send them, each convention one function.

None of them opens a file or fetches an address: a document comes with its text.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator

from rag_middle.documents import ContextPrompt, Document, unmark
from rag_middle.errors import PromptError
from rag_middle.plain_data import is_finite_number
from rag_middle.tokens.conversation import Conversation

if TYPE_CHECKING:
    from rag_middle.generation import Generation

_Item = TypeVar("_Item")

#: A list of which only the first wrong item is reported. Errors of millions take minutes, in which
#: a server answers nobody.
ListOf = Annotated[list[_Item], Field(fail_fast=True)]

Convention = Literal[
    "documents",
    "cohere",
    "anthropic_text",
    "anthropic_blocks",
    "search_result",
    "langchain",
    "llama_index",
    "file",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerDocument:
    """A document of a request, and what its caller needs to recognise it.

    Attributes:
        document: as the model reads it.
        convention: how it was sent.
        id: the caller's.
        source: address or name; never opened.
        blocks: texts that it was sent in, where there may be several.
        cited: whether its caller wants citations.
        number: 0-based, among the documents of its kind in the request, read or not.
    """

    document: Document
    convention: Convention
    id: str | None = None
    source: str | None = None
    blocks: tuple[str, ...] = ()
    cited: bool = True
    number: int = 0

    @property
    def kind(self) -> str:
        """What is counted together by who sends it: Anthropic's documents, search results, ..."""
        if self.convention in ("documents", "cohere"):  # both in the request's field `documents`
            return "documents"
        return self.convention.partition("_")[0]

    @property
    def title(self) -> str | None:
        """What an answer may call it: its title, the one in its metadata, or its id."""
        known = (self.document.title, self.document.metadata.get("title"), self.id)
        return next((str(name) for name in known if name), None)

    @property
    def name(self) -> str | None:
        """What its caller knows it by: its id, or where it comes from."""
        return self.id or self.source

    @property
    def cited_text(self) -> str:
        """Its text as it was sent, all blocks together."""
        return "\n".join(self.blocks) or self.document.text

    @property
    def url(self) -> str | None:
        """Its address on the web, where the source is one."""
        is_address = (self.source or "").startswith(("http://", "https://"))
        return self.source if is_address else None


def counted(parts: Iterable[_Item]) -> list[_Item]:
    """Parts of a request, in order; its documents with their numbers."""
    counts: Counter[str] = Counter()
    found: list[Any] = []
    for part in parts:
        if isinstance(part, CallerDocument):
            found.append(replace(part, number=counts[part.kind]))
            counts[part.kind] += 1
        else:
            found.append(part)
    return found


def _document(text: str, title: str | None = None, score: float | None = None) -> Document:
    metadata = {} if score is None else {"score": score}
    return Document(unmark(text), title=title or None, metadata=metadata)


# -- conventions: each reads a mapping, and raises ValueError where its text is missing ----------


def _text(holder: Any, name: str) -> str:
    if isinstance(holder, Mapping) and isinstance(value := holder.get(name), str):
        return value
    raise ValueError(f"{name!r} must be a string")


def _option(holder: Mapping[str, Any], name: str) -> str | None:
    return None if holder.get(name) is None else _text(holder, name)


def _within(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(value := holder.get(name), Mapping):
        return value
    raise ValueError(f"{name!r} must be an object")


def _texts(holder: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A text, or those of text blocks."""
    content = holder.get(name)
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list | tuple):
        raise ValueError(f"{name!r} must be a string or a list of text blocks")
    return tuple(part if isinstance(part, str) else _text(part, "text") for part in content)


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("this model reads plain text, in UTF-8 and base64") from error


def _is_cited(block: Mapping[str, Any]) -> bool:
    citations = block.get("citations")
    return isinstance(citations, Mapping) and bool(citations.get("enabled"))


def _read_plain(entry: Mapping[str, Any]) -> CallerDocument:
    """vLLM and the chat templates of transformers: ``{"title", "text"}``."""
    score = entry.get("score")
    if score is not None and not is_finite_number(score):
        raise ValueError("'score' must be a finite number")
    return CallerDocument(
        document=_document(_text(entry, "text"), _option(entry, "title"), score),
        convention="documents",
        id=_option(entry, "id"),
        source=_option(entry, "url"),
    )


def _read_cohere(entry: Mapping[str, Any]) -> CallerDocument:
    """Cohere: ``{"id", "data": {...}}``. The model reads all fields of `data`, the text last."""
    sent = entry["data"]
    data = {"text": sent} if isinstance(sent, str) else dict(_within(entry, "data"))
    title = str(data.pop("title", "") or "")
    text = next((str(data.pop(n)) for n in ("text", "snippet", "content") if n in data), "")
    lines = [f"{name}: {value}" for name, value in data.items() if name not in ("id", "url")]
    return CallerDocument(
        document=_document("\n".join([*lines, text]), title),
        convention="cohere",
        id=_option(entry, "id") or (str(data["id"]) if "id" in data else None),
        source=str(data["url"]) if "url" in data else None,
    )


def _read_document(block: Mapping[str, Any]) -> CallerDocument:
    """Anthropic: a ``document`` block; its context is read and never cited."""
    source, context = _within(block, "source"), _option(block, "context")
    if source.get("type") not in ("text", "content"):
        raise ValueError("its source must be of the type 'text' or 'content'")
    is_text = source["type"] == "text"
    blocks = (_text(source, "data"),) if is_text else _texts(source, "content")
    return CallerDocument(
        document=_document(
            "\n".join([context, *blocks] if context else blocks), _option(block, "title")
        ),
        convention="anthropic_text" if is_text else "anthropic_blocks",
        blocks=blocks,
        cited=_is_cited(block),
    )


def _read_search_result(block: Mapping[str, Any]) -> CallerDocument:
    """Anthropic: a ``search_result`` block."""
    blocks = _texts(block, "content")
    return CallerDocument(
        document=_document("\n".join(blocks), _option(block, "title")),
        convention="search_result",
        source=_option(block, "source"),
        blocks=blocks,
        cited=_is_cited(block),
    )


def _read_plain_text(block: Mapping[str, Any]) -> CallerDocument:
    """LangChain: a ``text-plain`` block with its text."""
    encoded = block.get("base64") if block.get("text") is None else None
    text = _decoded(encoded) if isinstance(encoded, str) else _text(block, "text")
    context = _option(block, "context")
    return CallerDocument(
        document=_document(f"{context}\n{text}" if context else text, _option(block, "title")),
        convention="langchain",
        id=_option(block, "id"),
        source=_option(block, "url"),
        blocks=(text,),
    )


def _read_llama_document(block: Mapping[str, Any]) -> CallerDocument:
    """LlamaIndex: ``DocumentBlock`` with its data; paths and addresses are not opened."""
    data, title = _text(block, "data"), _option(block, "title")
    try:
        text = _decoded(data)
    except ValueError as error:
        raise ValueError(
            f"{error}. LlamaIndex takes data for base64 where it can be ('Caen'): pass "
            "base64.b64encode(text.encode()), or a CitableBlock"
        ) from error
    title = None if title == "input_document" else title  # the default there
    return CallerDocument(document=_document(text, title), convention="llama_index")


def _read_citable(block: Mapping[str, Any]) -> CallerDocument:
    """LlamaIndex: ``CitableBlock``, its content in text blocks."""
    blocks = _texts(block, "content")
    return CallerDocument(
        document=_document("\n".join(blocks), _text(block, "title")),
        convention="llama_index",
        source=_text(block, "source"),
        blocks=blocks,
    )


def _read_file(block: Mapping[str, Any]) -> CallerDocument:
    """OpenAI: text as a data URL, which LlamaIndex's and LangChain's clients make of documents."""
    file = _within(block, "file")
    name, (kind, comma, encoded) = (
        _option(file, "filename"),
        _text(file, "file_data").partition(","),
    )
    if comma and not (kind.startswith("data:text/") and kind.endswith(";base64")):
        raise ValueError("this model reads plain text: 'data:text/plain;base64,...'")
    text = _decoded(encoded if comma else kind)
    return CallerDocument(document=_document(text, name), convention="file", source=name)


_BLOCKS: dict[str, Callable[[Mapping[str, Any]], str | CallerDocument]] = {
    "text": lambda block: _text(block, "text"),
    "refusal": lambda block: _text(block, "refusal"),  # what a model said instead of an answer
    "document": _read_document,
    "search_result": _read_search_result,
    "text-plain": _read_plain_text,
    "citable": _read_citable,
    "file": _read_file,
}


def _read_block(block: Any) -> list[str | CallerDocument]:
    """Texts and documents of a part of a message."""
    # LlamaIndex names its kinds in `block_type`, all others in `type`.
    kind = block.get("type", block.get("block_type")) if isinstance(block, Mapping) else None
    if kind == "tool_result":  # Anthropic: a text, or blocks that are no such result
        content = block.get("content", "")
        if isinstance(content, str):
            return [content]
        if not isinstance(content, list | tuple):
            raise ValueError("'content' must be a string or a list of blocks")
        if not any(isinstance(part, Mapping) and part.get("type") == kind for part in content):
            return [read for part in content for read in _read_block(part)]
    elif kind == "document" and "type" not in block:
        return [_read_llama_document(block)]
    elif isinstance(kind, str) and kind in _BLOCKS:
        return [_BLOCKS[kind](block)]
    raise ValueError(
        "this model reads text: a block is 'text', or a document ('document', 'search_result', "
        "'text-plain', 'citable', 'file' with plain text)"
    )


def _read_entry(entry: Any) -> CallerDocument:
    if isinstance(entry, str):
        return CallerDocument(document=_document(entry), convention="cohere")
    if not isinstance(entry, Mapping):
        raise ValueError("it must be a string or an object")
    return (_read_cohere if "data" in entry else _read_plain)(entry)


Block = Annotated[list[str | CallerDocument], PlainValidator(_read_block)]
"""A part of a message, as the texts and documents that it holds."""

TopDocument = Annotated[
    str | CallerDocument,
    PlainValidator(lambda entry: entry if isinstance(entry, str) else _read_entry(entry)),
]
"""An entry of a request's ``documents``; texts, of which a body may hold many, stay unread."""


@dataclass(frozen=True, slots=True)
class SentDocument(Document):
    """A document of a prompt that knows how its caller sent it."""

    source: CallerDocument = field(kw_only=True, repr=False, compare=False)


def parsed_document(document: object, where: str) -> CallerDocument:
    """An entry of ``documents``.

    Args:
        document: as its caller sent it.
        where: names it in errors.

    Raises:
        PromptError: it comes without its text.
    """
    return _read_or_refuse(_read_entry, document, where)


def _read_or_refuse(read: Callable[[Any], _Item], value: object, where: str) -> _Item:
    try:
        return read(value)
    except ValueError as error:
        raise PromptError(
            f"{where} cannot be read: {error}. docs/serving.md shows the forms of documents."
        ) from error


def block_parts(content: str | Iterable[Block]) -> list[str | CallerDocument]:
    """Texts and documents of a message's content, in order."""
    return [content] if isinstance(content, str) else [part for parts in content for part in parts]


def content_parts(block: Mapping[str, Any], where: str) -> list[str | Document]:
    """Texts and documents of a content block, as a prompt takes them.

    Raises:
        PromptError: no text and no document, or one without its text.
    """
    parts = _read_or_refuse(_read_block, block, where)
    return [part if isinstance(part, str) else sent_document(part) for part in parts]


def passed_documents(
    entries: object, read: Callable[[Any], Document | None], kinds: str
) -> list[Document]:
    """What the caller of a framework's model passed as ``documents=``.

    Args:
        entries: documents of this package or of the framework, strings, and mappings in the
            conventions of vLLM and Cohere.
        read: makes a document of one of the framework's; ``None`` of everything else.
        kinds: how the framework calls its documents, for messages.

    Raises:
        PromptError: no list of documents; what can be read once only is none, since frameworks
            make calls again, and look for their answers in caches first.
    """
    is_one = isinstance(entries, str | Mapping | Document)
    is_iterator = isinstance(entries, Iterator)
    if is_iterator or is_one or not isinstance(entries, Iterable) or read(entries) is not None:
        advice = " It can be read once only: pass list(...)." if is_iterator else ""
        raise PromptError(
            f"documents must be a list of documents, got {type(entries).__name__}.{advice}"
        )
    documents = []
    for index, entry in enumerate(entries):
        document = entry if isinstance(entry, Document) else read(entry)
        if isinstance(entry, str):
            document = _document(entry)
        elif document is None and isinstance(entry, Mapping):
            document = sent_document(parsed_document(entry, f"Document {index}"))
        if document is None:
            raise PromptError(
                f"documents must hold {kinds}, rag-middle documents, mappings "
                f'{{"title", "text"}} or strings, got {type(entry).__name__}.'
            )
        documents.append(document)
    return documents


def sent_document(source: CallerDocument) -> Document:
    """The document for a prompt, by its caller's id; `caller_document` gives the source back."""
    own = source.document
    return SentDocument(own.text, own.title, source.name, own.metadata, source=source)


def caller_document(document: Document) -> CallerDocument:
    """What the caller of a prompt sent as this document; LangChain's own where nobody noted it."""
    if isinstance(document, SentDocument):
        return document.source
    address = document.metadata.get("source")
    return CallerDocument(
        document=document,
        convention="langchain",
        id=document.id,
        source=address if isinstance(address, str) else None,
    )


def sources_of(prompt: object, generation: Generation) -> list[CallerDocument]:
    """What the documents of a prompt came from; of marked text nothing is known.

    Args:
        prompt: that was given to `RagMiddleModel.generate`.
        generation: the answer; documents that the model did not read are no sources.
    """
    messages = prompt if isinstance(prompt, list | tuple) else [{"content": prompt}]
    contents = [message["content"] for message in messages]
    documents = [
        document
        for content in contents
        if isinstance(content, ContextPrompt)
        for document in content.documents
    ]
    if documents and generation.dropped_documents:
        unread = _unread(prompt, generation)
        documents = [document for document in documents if _key(document) not in unread]
    return [caller_document(document) for document in documents]


def _unread(prompt: Any, generation: Generation) -> set[tuple[str | None, ...]]:
    """Keys of the documents that were left out. Ids are none: several may be the same or None."""
    if not isinstance(prompt, ContextPrompt):
        prompt = Conversation.of_messages(prompt).prompt
    keys = [_key(document) for document in prompt.documents]
    dropped = {document.index for document in generation.dropped_documents}
    # A method may have repeated them all.
    read = {*range(generation.documents + len(dropped))} - dropped
    return {*keys} - {keys[index % len(keys)] for index in read}


def _key(document: Document) -> tuple[str | None, ...]:
    return document.id, document.title, document.text


def top_documents(documents: Iterable[TopDocument]) -> list[CallerDocument]:
    """A request's ``documents``."""
    return [_read_entry(each) if isinstance(each, str) else each for each in documents]
