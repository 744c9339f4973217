"""Requests to an OpenAI-compatible server, and whether it has read the documents in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rag_middle.documents import ContextPrompt
from rag_middle.endpoint.server import Reply
from rag_middle.errors import ConfigError, EndpointError, UnsupportedGenerationError
from rag_middle.markers import MARKER_KEY_VARIABLE
from rag_middle.options import OPTIONS, GenerationOptions, SendDocuments
from rag_middle.wording import shortened

#: Options of `GenerationOptions` that act here or have a field in requests.
_SENT = (
    *("template", "system", "max_new_tokens", "temperature", "top_p", "seed", "stop"),
    *("on_overflow", "on_missing_documents", "missing_documents_hint"),
)


def check_options(options: GenerationOptions) -> None:
    """Raise `UnsupportedGenerationError` for options that the interface does not have."""
    for name in OPTIONS:
        if name not in _SENT and getattr(options, name) != OPTIONS[name].default:
            raise UnsupportedGenerationError(
                f"{name} is no option of the OpenAI interface: leave it out, or hand the server "
                "a field that it knows with extra_body={...}.",
            )
    if callable(options.template):
        raise UnsupportedGenerationError(
            "template is a function, and the server writes its own template: pass 'chat', or "
            "'raw' for a prompt that you have written.",
        )


def check_sending(documents: SendDocuments, extra: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for what could not be read on the other side."""
    if documents == "marked" and not os.environ.get(MARKER_KEY_VARIABLE):
        raise ConfigError(
            "Marked documents are read by a server that shares the key: set "
            f"{MARKER_KEY_VARIABLE} to the same secret here and there, or send them with "
            "send_documents='field' (--send-documents field).",
        )
    own = sorted({"model", "messages", "prompt", "stream", "n", "documents"} & extra.keys())
    if own:
        raise ConfigError(f"extra_body must leave out {', '.join(own)}: requests are made of them.")


def request_body(
    prompt: ContextPrompt,
    options: GenerationOptions,
    *,
    model: str,
    documents: SendDocuments,
    seed: int | None,
    method: str | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a request for one answer: to a chat, or to complete plain text.

    Args:
        prompt: documents in the order in which the model shall read them.
        documents: how they travel; not ``"auto"``.
        method: that the server shall apply; None says nothing about it.
        extra: more fields; they replace those made here, and None leaves one out.
    """
    text = prompt.marked if documents == "marked" else prompt.text
    body: dict[str, Any] = {"model": model}
    beside = [
        {"id": d.id or str(index), "title": d.title or "", "text": d.text}
        for index, d in enumerate(prompt.documents)
    ]
    if documents == "field":
        text = prompt.prefix + prompt.suffix
    if options.template == "raw":
        body["prompt"] = text if options.system is None else f"{options.system}\n\n{text}"
    else:
        content: str | list[dict[str, str]] = text
        if documents == "field" and prompt.prefix.strip() and beside:
            # The field `documents` would stand before the instructions.
            content = [
                {"type": "text", "text": prompt.prefix},
                *({"type": "text-plain", **document} for document in beside),
                {"type": "text", "text": prompt.suffix},
            ]
            beside = []
        system = [] if options.system is None else [{"role": "system", "content": options.system}]
        body["messages"] = [*system, {"role": "user", "content": content}]
    if documents == "field":
        body["documents"] = beside
    body |= {"max_tokens": options.max_new_tokens, "temperature": options.temperature}
    if options.samples:
        body |= {"top_p": options.top_p, "seed": seed}
    if options.stop:
        body["stop"] = list(options.stop)
    body["method"] = method
    return {name: value for name, value in {**body, **extra}.items() if value is not None}


def check_served(
    reply: Reply, documents: int, url: str, *, sent: SendDocuments, method: str | None
) -> None:
    """Refuse an answer to documents that the server has not read as its method needs them.

    Args:
        method: that was asked for; None for whatever the server uses.

    Raises:
        EndpointError: as text, they left its method without effect; otherwise, it does not say
            that it read them, or says otherwise.
    """
    served = reply.served or {}
    name = served.get("method")
    if sent == "text":
        if served.get("applied") is False and documents and name != "none":
            raise EndpointError(
                f"{url} uses {shortened(repr(name))}, which had no effect: it found no documents "
                "in the text. Send them as documents, with send_documents='field' "
                "(--send-documents field), or start the server with --method none.",
            )
        return
    if name and method in (None, name) and (served.get("documents") or 0) == documents:
        return
    said = shortened(repr(dict(served))) if served else "nothing of documents and methods"
    under = "" if method is None else f" under {method}"
    raise EndpointError(
        f"{url} should have read {documents} documents{under}; its reply says {said}. "
        "send_documents is for `rag-middle serve` with that method among those it allows; leave "
        "it out for other servers.",
    )
