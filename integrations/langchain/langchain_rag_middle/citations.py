"""Where an answer names its documents: ``citation`` annotations on the text of its content blocks.

The content of an answer stays a string, whatever it cites: chains and parsers expect one. LangChain
asks the provider's translator for `AIMessage.content_blocks`, and those have the annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import ContentBlock

from langchain_rag_middle.responses import PROVIDER
from rag_middle.conventions.documents import sources_of

if TYPE_CHECKING:
    from rag_middle import Generation

__all__ = ["cited"]


def cited(generation: Generation, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The titles (or ids) in an answer of documents that came as objects.

    Args:
        generation: the answer.
        messages: as `prompt_messages` makes them.

    Returns:
        LangChain's ``citation`` annotations, with ``start_index`` and ``end_index`` in characters
        of the answer, and the document's id in ``extras``.
    """
    from rag_middle.conventions.citations import langchain_citations  # PyTorch, needed by now

    documents = sources_of(messages, generation.dropped_documents)
    return langchain_citations(generation.text, documents) if documents else []


def _blocks(message: AIMessage) -> list[ContentBlock]:
    citations = (message.response_metadata.get("rag_middle") or {}).get("citations")
    if not citations:
        raise NotImplementedError  # LangChain then reads the content by itself
    others = {
        name: value for name, value in message.response_metadata.items() if name != "model_provider"
    }
    blocks: list[Any] = list(
        message.model_copy(update={"response_metadata": others}).content_blocks
    )
    text = next((block for block in blocks if block["type"] == "text"), None)
    if text is None:  # the last chunk of a stream
        text = {"type": "text", "text": ""}
        blocks.append(text)
    text["annotations"] = [*text.get("annotations", ()), *citations]
    return blocks


register_translator(PROVIDER, _blocks, _blocks)
