"""From what LlamaIndex sends to what rag-middle reads: messages, options, documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
)

from rag_middle import Document, PromptError, UnsupportedGenerationError, mark
from rag_middle.generation import Prompt

__all__ = ["Request", "chat_messages", "generation_options"]

#: Roles as chat templates know them. What a tool or a function returned is told by the user:
#: this model calls no tools, and most templates refuse such messages.
_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "user",
    MessageRole.FUNCTION: "user",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the model.

    Attributes:
        prompt: what it reads.
        options: keyword arguments of `RagMiddleModel.generate`.
    """

    prompt: Prompt
    options: dict[str, Any]


def chat_messages(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Messages as chat templates read them, documents marked.

    Citable blocks become marked documents.

    Raises:
        PromptError: a message holds something else than text.
    """
    converted = []
    for index, message in enumerate(messages):
        role = _ROLES.get(message.role, message.role.value)
        content = "\n".join(_texts(message, index))
        converted.append({"role": role, "content": content})
    return converted


def generation_options(
    defaults: Mapping[str, Any], given: Mapping[str, Any], stops: Sequence[str]
) -> dict[str, Any]:
    """Options of a call: the LLM's own, overridden by those of the call.

    ``do_sample``, which `generate_kwargs` written for transformers have, is understood: False
    means temperature 0, and True means temperature 1 unless another one above 0 is given.

    Args:
        defaults: the LLM's own.
        given: with the call.
        stops: stop strings besides those of the call.

    Raises:
        UnsupportedGenerationError: ``do_sample`` is neither True nor False.
    """
    options = {**defaults, **given}
    # A temperature of the call is newer than a do_sample of the LLM.
    inherited = None if "temperature" in given else defaults.get("do_sample")
    for value in (options.pop("do_sample", None), inherited):
        if not isinstance(value, bool | None):
            raise UnsupportedGenerationError(f"do_sample must be True or False, got {value!r}.")
    sampled = given.get("do_sample", inherited)
    if sampled is False:
        options["temperature"] = 0.0
    elif sampled:
        options["temperature"] = options.get("temperature") or 1.0
    if stops:
        own = options.get("stop", ())
        options["stop"] = [*([own] if isinstance(own, str) else own), *stops]
    return options


def _texts(message: ChatMessage, index: int) -> list[str]:
    texts = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, CitableBlock):
            inner = _texts(ChatMessage(role=message.role, blocks=list(block.content)), index)
            texts.append(mark(Document("\n".join(inner), title=block.title or None)))
        elif not isinstance(block, ThinkingBlock | CachePoint):
            raise PromptError(
                f"Message {index} holds a {type(block).__name__}, and this model reads text only. "
                "Use TextBlock, or CitableBlock for a document."
            )
    return texts
