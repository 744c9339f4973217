"""Names of arguments: what they are called here and elsewhere, and which are none."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from langchain_rag_middle.notices import IgnoredArgumentWarning, warn_user
from rag_middle import UnsupportedGenerationError

__all__ = ["FRAMEWORK", "LOADING", "OPTIONS", "renamed", "warn_of_unknown"]

#: Fields that are options of a request, and what `RagMiddleModel` calls them.
OPTIONS = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "repetition_penalty",
    "num_beams": "num_beams",
    "seed": "seed",
    "stop": "stop",
    "template": "template",
    "template_options": "template_options",
    "on_missing_documents": "on_missing_documents",
    "on_overflow": "on_overflow",
}
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
_ALIASES = {
    "max_new_tokens": "max_tokens",
    "model_id": "model",
    "model_name": "model",
    "stop_sequences": "stop",
}
#: Names that other models know, and what to do here.
_ELSEWHERE = {
    "api_key": "A local model needs none.",
    "base_url": "A local model has none.",
    "do_sample": "A temperature above 0 draws tokens; 0 does not.",
    "functions": "This model calls no tools.",
    "max_retries": "A local model has no connection to try again.",
    "model_kwargs": "Pass model_options for loading; options of a request have names of their own.",
    "n": "Repeat the input in batch().",
    "parallel_tool_calls": "This model calls no tools.",
    "pipeline_kwargs": "Options of a request have names of their own: max_tokens, temperature, ...",
    "response_format": "This model gives plain text.",
    "timeout": "Leave a stream, or cancel an asynchronous call, to end a generation.",
    "tool_choice": "This model calls no tools.",
    "tools": "This model calls no tools.",
}
#: What LangChain itself adds to calls, for its own use.
FRAMEWORK = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})


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


def warn_of_unknown(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Name what has no effect, with what was meant or what to do instead."""
    for name in given:
        if name in known:
            continue
        close = difflib.get_close_matches(name, sorted(known), n=1)
        hint = _ELSEWHERE.get(name) or (f"Did you mean {close[0]!r}?" if close else "")
        warn_user(f"{name!r} has no effect on {where}. {hint}".rstrip(), IgnoredArgumentWarning)
