"""Documents of calls and messages, and of prompts that are built by hand."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from io import IOBase
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.schema import MetadataMode
from llama_index.llms.rag_middle.nodes import as_node

from rag_middle import ContextPrompt, Document, PromptError
from rag_middle.conventions.documents import content_parts, passed_documents
from rag_middle.conventions.messages import with_extra_body
from rag_middle.documents import MarkedText, unmark
from rag_middle.options import renamed
from rag_middle.tokens.conversation import prompt_of_parts

#: Blocks that are not for the model to read.
_NO_TEXT = (ThinkingBlock, CachePoint, CitationBlock, ToolCallBlock)


def block_content(blocks: Iterable[Any], index: int, *, earlier: bool) -> str | ContextPrompt:
    """A message's content: its text, or a prompt where it holds documents as objects.

    Args:
        blocks: of the message.
        index: of the message, for errors.
        earlier: the model has answered since.

    Raises:
        PromptError: a block holds something else than text.
    """
    parts = _parts(blocks, index)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    read = [MarkedText(part) if isinstance(part, str) else part for part in parts]
    return prompt_of_parts(read, "last" if earlier else "single")


def without_documents(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Messages whose marked documents are plain text, where they stand."""
    return [
        message.model_copy(
            update={
                "blocks": [
                    TextBlock(text=unmark(block.text)) if isinstance(block, TextBlock) else block
                    for block in message.blocks
                ]
            }
        )
        for message in messages
    ]


def _parts(blocks: Iterable[Any], index: int) -> list[str | Document]:
    parts: list[str | Document] = []
    where = f"A block of message {index}"
    for block in blocks:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, CitableBlock):
            inner = _parts(block.content, index)
            texts = [part if isinstance(part, str) else part.render() for part in inner]
            content = [{"text": text} for text in texts]
            parts += content_parts(
                {**block.model_dump(exclude={"content"}), "content": content}, where
            )
        elif isinstance(block, DocumentBlock):
            if block.data is None:
                raise PromptError(
                    f"Message {index} holds a DocumentBlock without data. No path or address is "
                    "opened here: pass DocumentBlock(data=...) with its text."
                )
            raw = block.resolve_document().read() if isinstance(block.data, IOBase) else block.data
            encoded = base64.b64encode(raw) if isinstance(block.data, IOBase) else raw
            fields = {"data": encoded.decode("ascii"), "title": block.title}
            parts += content_parts({"block_type": "document", **fields}, where)
        elif not isinstance(block, _NO_TEXT):
            raise PromptError(
                f"Message {index} holds a {type(block).__name__}, and this model reads text only. "
                "Use TextBlock, or CitableBlock or DocumentBlock for a document."
            )
    return parts


def documents_of_call(given: Mapping[str, Any]) -> tuple[list[Document], dict[str, Any]]:
    """The documents of a call, and its other arguments.

    They come as ``documents=`` or, as clients of vLLM send them, in ``extra_body``: nodes, strings,
    documents of rag-middle, or mappings ``{"title", "text"}`` as for vLLM. Other entries of
    ``extra_body`` are options of the call.

    Raises:
        PromptError: they are none.
        UnsupportedGenerationError: one thing twice.
    """
    rest = renamed(with_extra_body(given))
    return passed_documents(rest.pop("documents", None) or (), _of_node, "nodes"), rest


def _of_node(entry: object) -> Document | None:
    scored = as_node(entry)
    if scored is None:
        return None
    score = {} if scored.score is None else {"score": scored.score}
    text = unmark(scored.node.get_content(MetadataMode.LLM))
    return Document(text, id=scored.node.node_id, metadata={**scored.node.metadata, **score})
