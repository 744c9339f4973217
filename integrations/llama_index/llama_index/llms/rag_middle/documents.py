"""Documents of calls and messages, and of prompts that are built by hand."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
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

from rag_middle import Document, PromptError, unmark
from rag_middle.integration import MarkedText, content_parts

#: Blocks that are not for the model to read.
_NO_TEXT = (ThinkingBlock, CachePoint, CitationBlock, ToolCallBlock)


def message_parts(message: ChatMessage, index: int) -> list[MarkedText | Document]:
    """What a message holds: its text, or texts and documents in order.

    Args:
        message: of a conversation.
        index: of the message, for errors.

    Raises:
        PromptError: a block holds something else than text.
    """
    parts = _parts(message.blocks, index)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return [MarkedText("\n".join(texts))]
    return [MarkedText(part) if isinstance(part, str) else part for part in parts]


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
