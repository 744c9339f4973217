"""Names of arguments: what they are called here and elsewhere, and which are none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import Field

from rag_middle import UnsupportedGenerationError
from rag_middle.notices import pass_over, warn_caller
from rag_middle.options import ANSWERS, unknown_option, without_neutral
from rag_middle.options import OPTIONS as DECLARED
from rag_middle.wording import Argument, WordedException

__all__ = [
    "FIXED",
    "FRAMEWORK",
    "LOADING",
    "OPTIONS",
    "IgnoredArgumentWarning",
    "names_of_fields",
    "refuse_unknown",
    "renamed",
    "with_extra_body",
]

#: What LangChain's users know an option of a request by.
_RENAMED = {"max_new_tokens": "max_tokens"}
#: Options that are no fields: messages, streams and callbacks of LangChain stand in their place.
_NOT_FIELDS = {"allow_control_tokens", "cancel", "missing_documents_hint", "system"}
_NOT_FIELDS |= {"tools", "tool_choice", "response_format"}  # of calls only: bind() or bind_tools()

#: Fields that are options of a request, and what `GenerationOptions` calls them.
OPTIONS = {_RENAMED.get(name, name): name for name in DECLARED if name not in _NOT_FIELDS}
#: Fields that say what is loaded, and what `RagMiddleModel.from_pretrained` calls them.
LOADING = {
    "model": "name_or_path",
    "revision": "revision",
    "tokenizer": "tokenizer",
    "dtype": "dtype",
    "device": "device",
    "device_map": "device_map",
    "quantization_config": "quantization_config",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
    "context_window": "context_window",
    "self_check": "self_check",
    "model_options": "model_options",
    "tokenizer_options": "tokenizer_options",
}
#: Fields that no call can change: weights are loaded once.
FIXED = (*LOADING, "token")
_ALIASES = {
    **_RENAMED,
    "num_return_sequences": "n",
    "model_id": "model",
    "model_name": "model",
    "stop_sequences": "stop",
    "chat_template_kwargs": "template_options",
}
#: What models behind an address need, and why it has no effect here.
_OF_SERVICES = {
    "api_key": "A local model needs none.",
    "base_url": "A local model has none.",
    "max_retries": "A local model has no connection to try again.",
    "timeout": "Leave a stream, or cancel an asynchronous call, to end a generation.",
}
#: Names that other models know, and what to do here.
_ELSEWHERE = {
    "model_kwargs": "It is of the constructor; options of a call have names of their own.",
    "pipeline_kwargs": "It is of the constructor; options of a call have names of their own.",
    "response_format": "Pass it with a call, or use bind() or with_structured_output().",
    "tool_choice": "Pass it to bind_tools().",
    "tools": "Pass them to bind_tools().",
}
# Warnings point at the user's own line, wherever it stands on the thread's stack.
pass_over(
    *"asyncio concurrent contextlib langchain langchain_classic langchain_core "
    "langchain_rag_middle langgraph pydantic threading".split()
)

#: What LangChain itself adds to calls, for its own use.
FRAMEWORK = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})


class IgnoredArgumentWarning(UserWarning):
    """An argument was given that models behind an address need and a local one does not."""


def option_field(name: str, **others: Any) -> Any:
    """A field with the default and the description that `rag_middle.options` declares.

    Args:
        name: of the option.
        others: arguments of `pydantic.Field`.
    """
    declared = ANSWERS if name == ANSWERS.name else DECLARED[name]
    described = {"default": declared.default, "description": declared.option.help}
    return Field(**{**described, **others})


@contextmanager
def names_of_fields() -> Iterator[None]:
    """Errors of the block name options as the fields of this package are called."""
    try:
        yield
    except WordedException as error:
        error.parts = tuple(
            replace(part, name=_RENAMED.get(part.name, part.name))
            if isinstance(part, Argument)
            else part
            for part in error.parts
        )
        error.args = ("".join(map(str, error.parts)),)
        raise


def renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names of this package.

    Raises:
        UnsupportedGenerationError: one thing under two names.
    """
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        known = _ALIASES.get(name, name)
        if known in renamed:
            raise UnsupportedGenerationError(
                f"{name} and {known} are the same and were both given: pass one of them."
            )
        renamed[known] = value
    return renamed


def with_extra_body(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call, with those of ``extra_body``: what clients of vLLM send beside them.

    Raises:
        UnsupportedGenerationError: no mapping, or one thing twice.
    """
    rest = {name: value for name, value in given.items() if name != "extra_body"}
    extra = given.get("extra_body")
    if extra is None:
        return rest
    if not isinstance(extra, Mapping):
        raise UnsupportedGenerationError(
            f"extra_body must be a mapping of options, got {type(extra).__name__}."
        )
    twice = sorted(rest.keys() & extra.keys())
    if twice:
        raise UnsupportedGenerationError(
            f"{', '.join(twice)} was given with the call and in extra_body: pass it once."
        )
    return {**rest, **extra}


def refuse_unknown(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse options that do not exist; what only a service needs is named in a warning.

    Raises:
        UnsupportedGenerationError: an option that is not known, as `RagMiddleModel` refuses it.
    """
    for name in without_neutral(given):
        if name in known:
            continue
        if name not in _OF_SERVICES:
            names = sorted([*OPTIONS, ANSWERS.name])
            raise unknown_option(name, names, hint=_ELSEWHERE.get(name))
        warn_caller(
            IgnoredArgumentWarning(f"{name!r} has no effect on {where}. {_OF_SERVICES[name]}")
        )
