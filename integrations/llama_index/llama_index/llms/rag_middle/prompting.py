"""What a call sends: prompt and options, from fields of the LLM and arguments of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.llms.rag_middle.requests import Request, chat_messages, generation_options

from rag_middle import parse
from rag_middle.generation import GenerationKwargs
from rag_middle.generation.options import checked_options

if TYPE_CHECKING:
    from llama_index.llms.rag_middle.base import RagMiddleLLM

__all__ = ["call_options", "chat_request", "completion_request"]


def completion_request(
    llm: RagMiddleLLM, prompt: str, formatted: bool, given: Mapping[str, Any]
) -> Request:
    """A request for a completion; `formatted` prompts are sent as they are."""
    options = call_options(llm, given)
    writes_itself = llm.completion_to_prompt is not default_completion_to_prompt
    if formatted or writes_itself:
        if not formatted:
            assert llm.completion_to_prompt is not None
            prompt = llm.completion_to_prompt(llm._extend_prompt(prompt))
        return Request(prompt, {**options, **_raw(writes_itself)})
    if llm.query_wrapper_prompt:
        prompt = llm.query_wrapper_prompt.format(query_str=prompt)
    if llm.system_prompt:
        options.setdefault("system", llm.system_prompt)
    return Request(prompt, options)


def chat_request(
    llm: RagMiddleLLM, messages: Sequence[ChatMessage], given: Mapping[str, Any]
) -> Request:
    """A request for an answer: through the chat template, else through `messages_to_prompt`."""
    options = call_options(llm, given)
    writes_itself = llm.messages_to_prompt is not generic_messages
    has_template = bool(getattr(llm.rag_middle_model.tokenizer, "chat_template", None))
    if has_template and not writes_itself:
        return Request(chat_messages(messages), options)
    assert llm.messages_to_prompt is not None
    # Documents of earlier turns are plain text, as they are under a chat template.
    prompt = parse(llm.messages_to_prompt(messages), groups="last")
    return Request(prompt, {**options, **_raw(writes_itself)})


def call_options(llm: RagMiddleLLM, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `RagMiddleModel.generate`.

    Raises:
        UnsupportedGenerationError: one that does not exist or makes no sense.
    """
    own = {
        "max_new_tokens": llm.max_new_tokens,
        "on_missing_documents": llm.on_missing_documents,
        **llm.generate_kwargs,
    }
    options = generation_options(own, given, llm.stop_strings)
    beside = ("method", "method_options")
    checked_options(
        {name: value for name, value in options.items() if name not in beside},
        allowed=GenerationKwargs,
    )
    return options


def _raw(control_tokens: bool) -> dict[str, Any]:
    """Options for text that is written as the model shall read it."""
    return {"template": "raw", "allow_control_tokens": control_tokens}
