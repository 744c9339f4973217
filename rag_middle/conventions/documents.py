"""Documents as clients of different interfaces send them.

None of them opens a file or fetches an address: a document comes with its text. What a client calls
a document is the `Document`'s id: its own id, or where it comes from; the latter is also in
``metadata["source"]``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator

from rag_middle.documents import Document, unmark
from rag_middle.errors import PromptError
from rag_middle.plain_data import is_finite_number

_Item = TypeVar("_Item")

#: A list of which only the first wrong item is reported. Errors of millions take minutes, in which
#: a server answers nobody.
ListOf = Annotated[list[_Item], Field(fail_fast=True)]

_LONGEST_NAME = 1_000  # characters; answers are searched for titles, and repeat all
_FORMS = (
    "this model reads text: a block is 'text', or a document with its text ('document', "
    "'search_result', 'text-plain', 'citable')"
)


def _document(text: str, fields: Mapping[str, Any], source: str = "url") -> Document:
    """A document of `text`, and what its caller says of it; `source`: the field of its address."""
    names = {name: fields.get(name) for name in ("title", "id", "context", source)}
    for name, value in names.items():
        if not isinstance(value, str | None):
            raise ValueError(f"{name!r} must be a string")
        if name != "context" and len(value or "") > _LONGEST_NAME:
            raise ValueError(f"{name!r} must have no more than {_LONGEST_NAME:,} characters")
    metadata = {"source": names[source], "score": fields.get("score")}
    if metadata["score"] is not None and not is_finite_number(metadata["score"]):
        raise ValueError("'score' must be a finite number")
    return Document(
        unmark(f"{names['context']}\n{text}" if names["context"] else text),
        title=names["title"] or None,
        id=names["id"] or names[source],
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def _joined(content: Any) -> str:
    """A text, or those of text blocks, a line each."""
    match content:
        case str():
            return content
        case {"text": str(text)}:
            return text
        case list():
            return "\n".join(map(_joined, content))
    raise ValueError("its content must be a string or a list of text blocks")


def _decoded(data: str, advice: str = "") -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except ValueError as error:
        raise ValueError(f"this model reads plain text, in UTF-8 and base64{advice}") from error


def _read_entry(entry: Any) -> Document:
    """vLLM and the chat templates of transformers: a text, or ``{"title", "text"}``."""
    match entry:
        case str():
            return _document(entry, {})
        case {"text": str(text)}:
            return _document(text, entry)
    if isinstance(entry, Mapping) and "text" not in entry:
        raise ValueError(f"'text' is missing, got {[*entry]!s:.100}")
    raise ValueError("'text' must be a string")


def _read_block(block: Any) -> list[str | Document]:
    """Texts and documents of a part of a message."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return [text]
        case {"block_type": "text", "text": str(text)}:  # LlamaIndex
            return [text]
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:  # Anthropic
            return [_document(text, {**block, "source": None})]
        case {"type": "document", "source": {"type": "content", "content": content}}:
            return [_document(_joined(content), {**block, "source": None})]
        case (
            {"type": "search_result", "content": content}  # Anthropic
            | {"block_type": "citable", "content": content}  # LlamaIndex
        ):
            return [_document(_joined(content), block, "source")]
        case {"type": "tool_result", "content": str(text)}:  # Anthropic
            return [text]
        case {"type": "tool_result", "content": list(parts)} if not any(
            isinstance(part, Mapping) and part.get("type") == "tool_result" for part in parts
        ):
            return [read for part in parts for read in _read_block(part)]
        case {"type": "text-plain", "text": str(text)}:  # LangChain
            return [_document(text, block)]
        case {"type": "text-plain", "base64": str(data)}:
            return [_document(_decoded(data), block)]
        case {"block_type": "document", "data": str(data)}:  # LlamaIndex
            # It takes data for base64 where it can be ('Caen').
            text = _decoded(data, ": pass base64.b64encode(text.encode()), or a CitableBlock")
            is_default = block.get("title") == "input_document"
            return [_document(text, {} if is_default else {"title": block.get("title")})]
    raise ValueError(_FORMS)


Block = Annotated[list[str | Document], PlainValidator(_read_block)]
"""A part of a message of a request, as the texts and documents that it holds."""

Entry = Annotated[Document, PlainValidator(_read_entry)]
"""An entry of a request's ``documents``."""


def parsed_document(document: object, where: str) -> Document:
    """An entry of ``documents``.

    Args:
        document: as its caller sent it.
        where: names it in errors.

    Raises:
        PromptError: it comes without its text.
    """
    return _read_or_refuse(_read_entry, document, where)


def content_parts(block: Mapping[str, Any], where: str) -> list[str | Document]:
    """Texts and documents of a content block; arguments and errors as of `parsed_document`."""
    return _read_or_refuse(_read_block, block, where)


def _read_or_refuse(read: Callable[[Any], _Item], value: object, where: str) -> _Item:
    try:
        return read(value)
    except ValueError as error:
        raise PromptError(
            f"{where} cannot be read: {error}. docs/serving.md shows the forms of documents."
        ) from error
