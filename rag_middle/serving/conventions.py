"""Documents as clients of different interfaces send them, each convention one class.

None of them makes the server open a file or fetch an address: a document comes with its text.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from rag_middle.documents import Document, unmark

__all__ = ["Block", "CallerDocument", "Convention", "RefusalBlock", "TextBlock", "TopDocument"]

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
    """

    document: Document
    convention: Convention
    id: str | None = None
    source: str | None = None
    blocks: tuple[str, ...] = ()
    cited: bool = True

    @property
    def url(self) -> str | None:
        """Its address on the web, where the source is one."""
        is_address = (self.source or "").startswith(("http://", "https://"))
        return self.source if is_address else None


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
    content: str | list[TextBlock]


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

    source: str
    title: str
    content: str | list[TextBlock]
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
        return _decoded(data)

    def read(self) -> CallerDocument:
        """The document."""
        title = None if self.title == "input_document" else self.title  # the default there
        return CallerDocument(document=_document(self.data, title), convention="llama_index")


class CitableBlock(_Part):
    """LlamaIndex: ``CitableBlock``, its content in text blocks."""

    title: str
    source: str
    content: list[TextBlock]

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


def _texts(content: str | list[TextBlock]) -> tuple[str, ...]:
    return (content,) if isinstance(content, str) else tuple(block.text for block in content)


_BLOCKS = {
    "text": "TextBlock",
    "refusal": "RefusalBlock",
    "search_result": "SearchResultBlock",
    "text-plain": "PlainTextBlock",
    "file": "FileBlock",
    "citable": "CitableBlock",
}


def _kind_of_block(block: Any) -> str | None:
    """The class of a block: LlamaIndex names its kinds in `block_type`, all others in `type`."""
    if not isinstance(block, dict):
        return None
    kind = block.get("type", block.get("block_type"))
    if kind == "document":
        return "DocumentBlock" if "type" in block else "LlamaDocumentBlock"
    return _BLOCKS.get(kind) if isinstance(kind, str) else None


Block = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[RefusalBlock, Tag("RefusalBlock")]
    | Annotated[DocumentBlock, Tag("DocumentBlock")]
    | Annotated[SearchResultBlock, Tag("SearchResultBlock")]
    | Annotated[PlainTextBlock, Tag("PlainTextBlock")]
    | Annotated[LlamaDocumentBlock, Tag("LlamaDocumentBlock")]
    | Annotated[CitableBlock, Tag("CitableBlock")]
    | Annotated[FileBlock, Tag("FileBlock")],
    Discriminator(
        _kind_of_block,
        custom_error_type="block_type",
        custom_error_message="this model reads text: a block is 'text', or a document ("
        "'document', 'search_result', 'text-plain', 'citable', 'file' with plain text)",
    ),
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
