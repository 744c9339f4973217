"""Documents as clients of different interfaces send them, each convention one function.

None of them opens a file or fetches an address: a document comes with its text. What a client calls
a document is the `Document`'s id: its own id, or where it comes from; the latter is also in
``metadata["source"]``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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


_LONGEST_ID = 1_000  # characters; answers are searched for ids, and repeat them

# -- conventions: each reads a mapping, and raises ValueError where its text is missing ----------


def _document(
    text: str,
    title: str | None = None,
    *,
    id: str | None = None,
    source: str | None = None,
    score: float | None = None,
) -> Document:
    if id and len(id) > _LONGEST_ID:
        raise ValueError(f"'id' must have no more than {_LONGEST_ID:,} characters")
    known = {"source": source, "score": score}
    metadata = {name: value for name, value in known.items() if value is not None}
    return Document(unmark(text), title=title or None, id=id or source, metadata=metadata)


def _text(holder: Any, name: str) -> str:
    if isinstance(holder, Mapping) and isinstance(value := holder.get(name), str):
        return value
    raise ValueError(f"{name!r} must be a string")


def _option(holder: Mapping[str, Any], name: str) -> str | None:
    return None if holder.get(name) is None else _text(holder, name)


def _texts(holder: Mapping[str, Any], name: str) -> str:
    """A text, or those of text blocks, a line each."""
    content = holder.get(name)
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(f"{name!r} must be a string or a list of text blocks")
    return "\n".join(part if isinstance(part, str) else _text(part, "text") for part in content)


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("this model reads plain text, in UTF-8 and base64") from error


def _read_entry(entry: Any) -> Document:
    """vLLM and the chat templates of transformers: a text, or ``{"title", "text"}``."""
    if isinstance(entry, str):
        return _document(entry)
    text = _text(entry, "text")
    score = entry.get("score")
    if score is not None and not is_finite_number(score):
        raise ValueError("'score' must be a finite number")
    title, source = _option(entry, "title"), _option(entry, "url")
    return _document(text, title, id=_option(entry, "id"), source=source, score=score)


def _read_document(block: Mapping[str, Any]) -> Document:
    """Anthropic: a ``document`` block."""
    source, context = block.get("source"), _option(block, "context")
    if not isinstance(source, Mapping) or source.get("type") not in ("text", "content"):
        raise ValueError("its source must be of the type 'text' or 'content'")
    text = _text(source, "data") if source["type"] == "text" else _texts(source, "content")
    return _document(f"{context}\n{text}" if context else text, _option(block, "title"))


def _read_search_result(block: Mapping[str, Any]) -> Document:
    """Anthropic: a ``search_result`` block. LlamaIndex: ``CitableBlock``."""
    text, title = _texts(block, "content"), _option(block, "title")
    return _document(text, title, source=_option(block, "source"))


def _read_plain_text(block: Mapping[str, Any]) -> Document:
    """LangChain: a ``text-plain`` block with its text."""
    encoded = block.get("base64") if block.get("text") is None else None
    text = _decoded(encoded) if isinstance(encoded, str) else _text(block, "text")
    context, title = _option(block, "context"), _option(block, "title")
    return _document(
        f"{context}\n{text}" if context else text,
        title,
        id=_option(block, "id"),
        source=_option(block, "url"),
    )


def _read_llama_document(block: Mapping[str, Any]) -> Document:
    """LlamaIndex: ``DocumentBlock`` with its data; paths and addresses are not opened."""
    data, title = _text(block, "data"), _option(block, "title")
    try:
        text = _decoded(data)
    except ValueError as error:
        raise ValueError(
            f"{error}. LlamaIndex takes data for base64 where it can be ('Caen'): pass "
            "base64.b64encode(text.encode()), or a CitableBlock"
        ) from error
    return _document(text, None if title == "input_document" else title)  # the default there


_BLOCKS: dict[str, Callable[[Mapping[str, Any]], str | Document]] = {
    "text": lambda block: _text(block, "text"),
    "refusal": lambda block: _text(block, "refusal"),  # what a model said instead of an answer
    "document": _read_document,
    "search_result": _read_search_result,
    "text-plain": _read_plain_text,
    "citable": _read_search_result,
}


def _read_block(block: Any) -> list[str | Document]:
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
        "'text-plain', 'citable')"
    )


# -- where they are read -------------------------------------------------------------------------

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


def passed_documents(
    entries: object, read: Callable[[Any], Document | None], kinds: str
) -> list[Document]:
    """What the caller of a framework's model passed as ``documents=``.

    Args:
        entries: documents of this package or of the framework, strings, and mappings
            ``{"title", "text"}``.
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
        if document is None and isinstance(entry, str | Mapping):
            document = parsed_document(entry, f"Document {index}")
        if document is None:
            raise PromptError(
                f"documents must hold {kinds}, rag-middle documents, mappings "
                f'{{"title", "text"}} or strings, got {type(entry).__name__}.'
            )
        documents.append(document)
    return documents


def sources_of(prompt: object, generation: Generation) -> list[Document]:
    """The documents of a prompt that the model read; of marked text nothing is known.

    Args:
        prompt: that was given to `RagMiddleModel.generate`.
        generation: the answer.
    """
    if isinstance(prompt, list | tuple):
        if not any(isinstance(message["content"], ContextPrompt) for message in prompt):
            return []
        prompt = Conversation.of_messages(prompt).prompt
    documents = prompt.documents if isinstance(prompt, ContextPrompt) else ()
    if not documents:
        return []
    dropped = {document.index for document in generation.dropped_documents}
    # A method may have repeated them all.
    read = {*range(generation.documents + len(dropped))} - dropped
    indices = {index % len(documents) for index in read}
    return [document for index, document in enumerate(documents) if index in indices]
