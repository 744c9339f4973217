"""What the integrations with other frameworks share, and all that they may use.

LangChain's, LlamaIndex's and Haystack's import the public packages (`rag_middle`, its `generation`,
`methods` and `retrieval`) and this module, nothing else of rag-middle; a test looks at that. What
they do the same way is written once, behind these names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rag_middle.checkpoints import cached_file
from rag_middle.conventions.documents import content_parts, marked_text, sources_of, split_call
from rag_middle.conventions.messages import message_fields, openai_logprobs, with_contents
from rag_middle.documents import MarkedText
from rag_middle.errors import MethodConfigError
from rag_middle.notices import warn_caller
from rag_middle.options import (
    ANSWERS,
    LOADING,
    OPTIONS,
    GenerationKwargs,
    checked_options,
    renamed,
    split_loading,
    unknown_option,
    with_token,
    without_secrets,
)
from rag_middle.small_model import default_model
from rag_middle.threads import in_thread, pieces_in_thread
from rag_middle.tokens.conversation import with_documents
from rag_middle.tools.definitions import with_top_resolved

if TYPE_CHECKING:
    from rag_middle.generation import Generation
    from rag_middle.methods import Method

__all__ = [
    "ANSWERS",
    "LOADING",
    "OPTIONS",
    "MarkedText",
    "cached_file",
    "call_options",
    "chosen_method",
    "citations_in",
    "content_parts",
    "in_thread",
    "marked_text",
    "message_fields",
    "named_model",
    "openai_logprobs",
    "pieces_in_thread",
    "renamed",
    "split_call",
    "split_loading",
    "unknown_option",
    "warn_caller",
    "with_contents",
    "with_documents",
    "with_token",
    "with_top_resolved",
    "without_secrets",
]


def named_model(model: str | Path | None) -> str:
    """A model's name, by default the one that commands use. Nothing is loaded.

    Raises:
        ModelNotFoundError: a path is meant that is not there, or the default model is not.
    """
    if model is None:
        return default_model()
    if not os.path.exists(os.path.expanduser(model)):
        from rag_middle.generation.loading import check_model_present  # needs PyTorch

        check_model_present(model)
    return str(model)


def chosen_method(method: Any, options: Mapping[str, Any] | None, loaded: Any = None) -> Method:
    """The method object that a name and its options choose: by default that of a `loaded` model.

    Args:
        method: as of `rag_middle.methods.resolve_method`, or None.
        options: of the method, also as JSON writes them: lists, and layers as text.
        loaded: a `RagMiddleModel`, or None: then no method is the default.

    Raises:
        UnknownNameError: no such method or preset.
        MethodConfigError: options that it refuses, or none that they belong to.
    """
    from rag_middle.methods.resolve import as_option, resolve_method  # needs PyTorch

    if method is None and options:
        raise MethodConfigError(
            f"Options {options!r:.100} were given without a method: name it too."
        )
    if method is None and loaded is not None:
        chosen: Method = loaded.method
        return chosen
    return resolve_method("none" if method is None else method, as_option(options))


def call_options(own: Mapping[str, Any], call: Mapping[str, Any], hint: str) -> dict[str, Any]:
    """Arguments of `RagMiddleModel.generate` for a call.

    A method of the call does not get the ``method_options`` of another.

    Args:
        own: options of the object that is called.
        call: options of the call, which come before them.
        hint: how documents get into a prompt there.

    Raises:
        UnsupportedGenerationError: one that does not exist or makes no sense.
    """
    call = renamed(call)
    own = {"missing_documents_hint": hint, **own}
    if call.get("method") is not None:
        own.pop("method_options", None)
    options = {**own, **call}
    of_answers = {n: v for n, v in options.items() if n not in ("method", "method_options")}
    checked_options(of_answers, allowed=GenerationKwargs)
    return options


def citations_in(
    generation: Generation, prompt: object, form: Literal["langchain", "llama_index", "plain"]
) -> list[dict[str, Any]]:
    """Where an answer names documents that came as objects, by title or id.

    Args:
        generation: the answer.
        prompt: that was given to `RagMiddleModel.generate`.
        form: whose form the citations have.
    """
    from rag_middle.conventions import citations  # needs PyTorch

    forms = {
        "langchain": citations.langchain_citations,
        "llama_index": citations.llama_index_citations,
        "plain": citations.plain_citations,
    }
    documents = sources_of(prompt, generation)
    return forms[form](generation.text, documents) if documents else []
