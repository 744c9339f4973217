"""What a call of a framework's model asks for: model, method, options, documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.conventions.documents import parsed_document
from rag_middle.documents import Document
from rag_middle.errors import MethodConfigError, PromptError, UnsupportedGenerationError
from rag_middle.options import GenerationKwargs, checked_options, renamed, without_secrets
from rag_middle.small_model import default_model

if TYPE_CHECKING:
    from rag_middle.methods import Method


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


def refuse_secrets(**options: Mapping[str, Any] | None) -> None:
    """Refuse options of loading that hold a token or proxies: they are saved and shown.

    Raises:
        UnsupportedGenerationError: they do.
    """
    for name, values in options.items():
        if without_secrets(values) != (values or {}):
            raise UnsupportedGenerationError(
                f"{name} holds a token or proxies, and would be saved and shown with them: pass "
                "token= instead, and name a proxy in HTTPS_PROXY."
            )


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


def split_call(
    arguments: Mapping[str, Any], read: Callable[[Any], Document | None], kinds: str
) -> tuple[list[Document], dict[str, Any]]:
    """The documents of a call of a framework's model, and its other arguments.

    They come as ``documents=`` or, as clients of vLLM send them, in ``extra_body``, whose other
    entries are options of the call.

    Args:
        arguments: of the call.
        read: makes a document of one of the framework's; ``None`` of everything else.
        kinds: how the framework calls its documents, for messages.

    Raises:
        PromptError: the documents are none.
        UnsupportedGenerationError: ``extra_body`` is no mapping, or one thing comes twice.
    """
    rest = {**arguments}
    extra = rest.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise UnsupportedGenerationError("extra_body must be a mapping of options.")
    for name in rest.keys() & extra.keys():
        raise UnsupportedGenerationError(f"{name} was given twice: leave it out of extra_body.")
    rest |= extra
    return _passed_documents(rest.pop("documents", None) or (), read, kinds), rest


def _passed_documents(
    entries: object, read: Callable[[Any], Document | None], kinds: str
) -> list[Document]:
    """What the caller of a framework's model passed as ``documents=``, see `split_call`.

    They are documents of this package or of the framework, strings, and mappings
    ``{"title", "text"}``.

    Raises:
        PromptError: no list of documents; what can be read once only is none, since frameworks
            make calls again, and look for their answers in caches first.
    """
    is_one = isinstance(entries, str | Mapping | Document | Iterator)
    if is_one or not isinstance(entries, Iterable) or read(entries) is not None:
        raise PromptError(
            f"documents must be a list of documents, got {type(entries).__name__}: pass list(...)."
        )
    documents = []
    for index, entry in enumerate(entries):
        document = entry if isinstance(entry, Document) else read(entry)
        if document is None and not isinstance(entry, str | Mapping):
            raise PromptError(
                f"documents must hold {kinds}, rag-middle documents, mappings "
                f'{{"title", "text"}} or strings, got {type(entry).__name__}.'
            )
        documents.append(document or parsed_document(entry, f"Document {index}"))
    return documents
