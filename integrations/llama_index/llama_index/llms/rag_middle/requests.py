"""From what LlamaIndex sends to what rag-middle reads: messages, options, documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.rag_middle.documents import block_content
from llama_index.llms.rag_middle.tools import history_fields

from rag_middle import UnsupportedGenerationError
from rag_middle.conventions.messages import template_role
from rag_middle.generation import Prompt
from rag_middle.options import without_neutral

__all__ = ["Request", "chat_messages", "generation_options"]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the model.

    Attributes:
        prompt: what it reads.
        options: keyword arguments of `RagMiddleModel.generate`.
    """

    prompt: Prompt
    options: dict[str, Any]


def chat_messages(
    messages: Sequence[ChatMessage], *, with_tools: bool = False
) -> list[dict[str, Any]]:
    """Messages as `RagMiddleModel` reads them: texts, or prompts with their documents.

    Calls and messages of tools are such with `with_tools`; else tools are quoted by the user.

    Raises:
        PromptError: a message holds something else than text.
    """
    roles = [template_role(message.role.value) for message in messages]
    answered = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return [
        {
            "role": role,
            "content": block_content(message.blocks, index, earlier=index < answered),
            **(history_fields(message) if with_tools else {}),
        }
        for index, (role, message) in enumerate(zip(roles, messages, strict=True))
    ]


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
    options = without_neutral({**defaults, **given})
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
