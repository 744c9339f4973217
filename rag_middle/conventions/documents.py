"""Documents as clients of different interfaces send them, each convention one class.

None of them opens a file or fetches an address: a document comes with its text.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from rag_middle.documents import ContextPrompt, Document, unmark
from rag_middle.errors import PromptError
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


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")  # `cache_control` and the like


class TextBlock(_Part):
    """Text of a message."""

    text: str


class RefusalBlock(_Part):
    """What a model said instead of an answer."""

    refusal: str


class PlainDocument(_Part):
    """vLLM and the chat templates of transformers: ``{"title", "text"}``."""

    text: str
    title: str | None = None
    id: str | None = None
    url: str | None = None
    score: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None

    def read(self) -> CallerDocument:
        """The document."""
        return CallerDocument(
            document=_document(self.text, self.title, self.score),
            convention="documents",
            id=self.id,
            source=self.url,
        )


class CohereDocument(_Part):
    """Cohere: ``{"id", "data": {...}}``. The model reads all fields of `data`, the text last."""

    data: dict[str, Any] | str
    id: str | None = None

    def read(self) -> CallerDocument:
        """The document."""
        data = {"text": self.data} if isinstance(self.data, str) else dict(self.data)
        title = str(data.pop("title", "") or "")
        text = next((str(data.pop(n)) for n in ("text", "snippet", "content") if n in data), "")
        lines = [f"{name}: {value}" for name, value in data.items() if name not in ("id", "url")]
        return CallerDocument(
            document=_document("\n".join([*lines, text]), title),
            convention="cohere",
            id=self.id or (str(data["id"]) if "id" in data else None),
            source=str(data["url"]) if "url" in data else None,
        )


class _Citations(_Part):
    enabled: bool = False


class TextSource(_Part):
    """Text of an Anthropic document."""

    type: Literal["text"]
    data: str


class ContentSource(_Part):
    """An Anthropic document in blocks, which citations then name."""

    type: Literal["content"]
    content: str | ListOf[TextBlock]


class DocumentBlock(_Part):
    """Anthropic: a ``document`` block; its context is read and never cited."""

    source: Annotated[TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    citations: _Citations | None = None

    def read(self) -> CallerDocument:
        """The document."""
        source = self.source
        is_text = isinstance(source, TextSource)
        blocks = _texts(source.data if isinstance(source, TextSource) else source.content)
        text = "\n".join([*([self.context] if self.context else []), *blocks])
        return CallerDocument(
            document=_document(text, self.title),
            convention="anthropic_text" if is_text else "anthropic_blocks",
            blocks=blocks,
            cited=self.citations is not None and self.citations.enabled,
        )


class SearchResultBlock(_Part):
    """Anthropic: a ``search_result`` block."""

    source: str | None = None
    title: str | None = None
    content: str | ListOf[TextBlock | str]
    citations: _Citations | None = None

    def read(self) -> CallerDocument:
        """The document."""
        blocks = _texts(self.content)
        return CallerDocument(
            document=_document("\n".join(blocks), self.title),
            convention="search_result",
            source=self.source,
            blocks=blocks,
            cited=self.citations is not None and self.citations.enabled,
        )


class PlainTextBlock(_Part):
    """LangChain: a ``text-plain`` block with its text."""

    text: str
    title: str | None = None
    context: str | None = None
    id: str | None = None
    url: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _decoded(cls, block: Any) -> Any:
        encoded = block.get("base64") if isinstance(block, dict) else None
        if not isinstance(encoded, str) or block.get("text") is not None:
            return block
        return {**block, "text": _decoded(encoded)}

    def read(self) -> CallerDocument:
        """The document."""
        text = f"{self.context}\n{self.text}" if self.context else self.text
        return CallerDocument(
            document=_document(text, self.title),
            convention="langchain",
            id=self.id,
            source=self.url,
            blocks=(self.text,),
        )


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("this model reads plain text, in UTF-8 and base64") from error


class LlamaDocumentBlock(_Part):
    """LlamaIndex: ``DocumentBlock`` with its data; paths and addresses are not opened."""

    data: str
    title: str | None = None

    @field_validator("data")
    @classmethod
    def _text(cls, data: str) -> str:
        try:
            return _decoded(data)
        except ValueError as error:
            raise ValueError(
                f"{error}. LlamaIndex takes data for base64 where it can be ('Caen'): pass "
                "base64.b64encode(text.encode()), or a CitableBlock"
            ) from error

    def read(self) -> CallerDocument:
        """The document."""
        title = None if self.title == "input_document" else self.title  # the default there
        return CallerDocument(document=_document(self.data, title), convention="llama_index")


class CitableBlock(_Part):
    """LlamaIndex: ``CitableBlock``, its content in text blocks."""

    title: str
    source: str
    content: ListOf[TextBlock]

    def read(self) -> CallerDocument:
        """The document."""
        blocks = _texts(self.content)
        return CallerDocument(
            document=_document("\n".join(blocks), self.title),
            convention="llama_index",
            source=self.source,
            blocks=blocks,
        )


class File(_Part):
    """Text as a data URL: what LlamaIndex's and LangChain's OpenAI clients make of documents."""

    file_data: str
    filename: str | None = None

    @field_validator("file_data")
    @classmethod
    def _text(cls, data: str) -> str:
        kind, comma, encoded = data.partition(",")
        if comma and not (kind.startswith("data:text/") and kind.endswith(";base64")):
            raise ValueError("this model reads plain text: 'data:text/plain;base64,...'")
        return _decoded(encoded if comma else data)


class FileBlock(_Part):
    """OpenAI: a ``file`` block."""

    file: File

    def read(self) -> CallerDocument:
        """The document."""
        name = self.file.filename
        return CallerDocument(
            document=_document(self.file.file_data, name), convention="file", source=name
        )


def _texts(content: str | Sequence[TextBlock | str]) -> tuple[str, ...]:
    parts = (content,) if isinstance(content, str) else content
    return tuple(part if isinstance(part, str) else part.text for part in parts)


class ToolResultBlock(_Part):
    """Anthropic: what a tool returned, as a text or in blocks of text and documents."""

    content: str | ListOf[ResultBlock] = ""


_BLOCKS = {
    "text": "TextBlock",
    "refusal": "RefusalBlock",
    "search_result": "SearchResultBlock",
    "text-plain": "PlainTextBlock",
    "file": "FileBlock",
    "citable": "CitableBlock",
    "tool_result": "ToolResultBlock",
}


def _kind_of_block(block: Any) -> str | None:
    """The class of a block: LlamaIndex names its kinds in `block_type`, all others in `type`."""
    if not isinstance(block, dict):
        return None
    kind = block.get("type", block.get("block_type"))
    if kind == "document":
        return "DocumentBlock" if "type" in block else "LlamaDocumentBlock"
    return _BLOCKS.get(kind) if isinstance(kind, str) else None


_TEXTS_AND_DOCUMENTS = (
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[RefusalBlock, Tag("RefusalBlock")]
    | Annotated[DocumentBlock, Tag("DocumentBlock")]
    | Annotated[SearchResultBlock, Tag("SearchResultBlock")]
    | Annotated[PlainTextBlock, Tag("PlainTextBlock")]
    | Annotated[LlamaDocumentBlock, Tag("LlamaDocumentBlock")]
    | Annotated[CitableBlock, Tag("CitableBlock")]
    | Annotated[FileBlock, Tag("FileBlock")]
)
_BY_KIND = Discriminator(
    _kind_of_block,
    custom_error_type="block_type",
    custom_error_message="this model reads text: a block is 'text', or a document ("
    "'document', 'search_result', 'text-plain', 'citable', 'file' with plain text)",
)

ResultBlock = Annotated[_TEXTS_AND_DOCUMENTS, _BY_KIND]
"""A part of what a tool returned."""

Block = Annotated[
    _TEXTS_AND_DOCUMENTS | Annotated[ToolResultBlock, Tag("ToolResultBlock")], _BY_KIND
]
"""A part of a message."""


def _kind_of_document(document: Any) -> str:
    if isinstance(document, str):
        return "str"
    has_data = isinstance(document, dict) and "data" in document
    return "CohereDocument" if has_data else "PlainDocument"


TopDocument = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[PlainDocument, Tag("PlainDocument")]
    | Annotated[CohereDocument, Tag("CohereDocument")],
    Discriminator(_kind_of_document),
]
"""An entry of a request's ``documents``."""

ToolResultBlock.model_rebuild()
_SOURCE = "rag_middle_source"
_block: TypeAdapter[Any] = TypeAdapter(Block)
_top_document: TypeAdapter[Any] = TypeAdapter(TopDocument)


def parsed_block(block: object, where: str) -> Any:
    """A content block, as the class of its convention.

    Args:
        block: as its caller sent it.
        where: names it in errors.

    Raises:
        PromptError: no text and no document, or one without its text.
    """
    return _parsed(_block, block, where)


def parsed_document(document: object, where: str) -> CallerDocument:
    """An entry of ``documents``; raises as `parsed_block` does."""
    [read] = top_documents([_parsed(_top_document, document, where)])
    return read


def _parsed(adapter: TypeAdapter[Any], value: object, where: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if not str(part)[:1].isupper())
        raise PromptError(
            f"{where}{f' ({place})' if place else ''} cannot be read: {first['msg']}. "
            "docs/serving.md shows the forms of documents."
        ) from error


def block_parts(content: str | Iterable[Any]) -> list[str | CallerDocument]:
    """Texts and documents of a message's content, in order."""
    if isinstance(content, str):
        return [content]
    parts: list[str | CallerDocument] = []
    blocks: Iterable[Any] = content
    for block in blocks:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, RefusalBlock):
            parts.append(block.refusal)
        elif isinstance(block, ToolResultBlock):
            parts += block_parts(block.content)
        else:
            parts.append(block.read())
    return parts


def content_parts(block: Mapping[str, Any], where: str) -> list[str | Document]:
    """Texts and documents of a content block, as a prompt takes them; raises as `parsed_block`."""
    parts = block_parts([parsed_block(dict(block), where)])
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
        elif isinstance(entry, Mapping):
            document = sent_document(parsed_document(dict(entry), f"Document {index}"))
        if document is None:
            raise PromptError(
                f"documents must hold {kinds}, rag-middle documents, mappings "
                f'{{"title", "text"}} or strings, got {type(entry).__name__}.'
            )
        documents.append(document)
    return documents


def sent_document(source: CallerDocument) -> Document:
    """The document for a prompt, by its caller's id; `caller_document` gives the source back."""
    document = source.document
    metadata = {**document.metadata, _SOURCE: source}
    return replace(document, id=source.name, metadata=metadata)


def caller_document(document: Document) -> CallerDocument:
    """What the caller of a prompt sent as this document; LangChain's own where nobody noted it."""
    source = document.metadata.get(_SOURCE)
    if isinstance(source, CallerDocument):
        return source
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
    return [
        CallerDocument(document=_document(entry), convention="cohere")
        if isinstance(entry, str)
        else entry.read()
        for entry in documents
    ]
