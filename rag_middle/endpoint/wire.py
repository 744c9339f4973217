"""Requests and replies of the OpenAI interface: chat completions, and completions of plain text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_middle.documents import ContextPrompt, MarkedText, prompt_of_parts
from rag_middle.endpoint.address import CHECK_ADDRESS, KeyStrikeout
from rag_middle.errors import (
    EndpointConfigError,
    EndpointReplyError,
    UnsupportedGenerationError,
)
from rag_middle.generation import FinishReason, Usage
from rag_middle.markers import MARKER_KEY_VARIABLE, literal
from rag_middle.options import OPTIONS, GenerationOptions, SendDocuments
from rag_middle.plain_data import is_whole
from rag_middle.wording import Argument, shortened

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "Reply",
    "StreamedText",
    "broken_off",
    "check_sending",
    "check_served",
    "read_reply",
    "request_body",
    "resource",
    "withheld",
]

CHAT, COMPLETIONS = "/chat/completions", "/completions"

_MOST_TOKENS = 2**31
_THINKING = ("reasoning_content", "reasoning")
#: Types of parts of a content that are no answer.
_THINKING_PARTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
_REFUSAL_PARTS = ("refusal",)
#: Why an answer ended, in the words of servers; all others mean that the model ended it.
_LENGTH = ("length", "max_length", "max_tokens", "model_length")
_FILTERED = (
    *("content_filter", "content_filtered", "refusal", "safety", "sensitive", "recitation"),
    *("blocklist", "prohibited_content", "spii"),
)
_BROKEN_OFF = ("error", "abort", "network_error", "insufficient_system_resource")
_CALLS = ("tool_calls", "tool_call", "tool_use", "function_call")
#: Options of `GenerationOptions` that the interface does not have, and the way round.
_ELSEWHERE = {
    "template_options": "extra_body={'chat_template_kwargs': {...}} hands them to vLLM.",
    "allow_control_tokens": "The server decides how text becomes tokens.",
    "top_k": "Servers that have it take extra_body={'top_k': ...}.",
    "repetition_penalty": "Servers that have it take extra_body={'repetition_penalty': ...}.",
    "typical_p": "Servers that have it take extra_body={'typical_p': ...}.",
    "no_repeat_ngram_size": "Servers that have it take extra_body={'no_repeat_ngram_size': ...}.",
    "num_beams": "It has no beam search.",
    "eos_token_id": "extra_body={'stop_token_ids': [...]} hands them to vLLM.",
    "pad_token_id": "The server makes its own batches.",
    "logprobs": "Only local models report them here.",
    "top_logprobs": "Only local models report them here.",
    "cancel": "Close the stream instead.",
    "tools": "Only local models call tools here; extra_body={'tools': [...]} shows a server some.",
    "tool_choice": "Only local models call tools here.",
    "response_format": "extra_body={'response_format': {...}} hands it to the server.",
}


def resource(options: GenerationOptions) -> str:
    """The path that a prompt goes to: completions of plain text for ``template="raw"``, else chat.

    Raises:
        UnsupportedGenerationError: options that the interface does not have.
    """
    for name, advice in _ELSEWHERE.items():
        if getattr(options, name) != OPTIONS[name].default:
            raise UnsupportedGenerationError(
                Argument(name), f" is no option of the OpenAI interface. {advice}"
            )
    if callable(options.template):
        raise UnsupportedGenerationError(
            Argument("template"),
            " is a function, and the server writes its own template: pass 'chat', or 'raw' for a "
            "prompt that you have written.",
        )
    return COMPLETIONS if options.template == "raw" else CHAT


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
    """The body of a request for one answer.

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
    if resource(options) == COMPLETIONS:
        body["prompt"] = text if options.system is None else f"{options.system}\n\n{text}"
    else:
        system = [] if options.system is None else [{"role": "system", "content": options.system}]
        content: str | list[dict[str, str]] = text
        if documents == "field" and prompt.prefix.strip() and beside:
            # The field `documents` would stand before the instructions.
            content = [
                {"type": "text", "text": prompt.prefix},
                *({"type": "text-plain", **document} for document in beside),
                {"type": "text", "text": prompt.suffix},
            ]
            beside = []
        body["messages"] = [*system, {"role": "user", "content": content}]
    if documents == "field":
        body["documents"] = beside
    body["max_tokens"] = options.max_new_tokens
    body["temperature"] = options.temperature
    if options.samples:
        body |= {"top_p": options.top_p, "seed": seed}
    if options.stop_strings:
        body["stop"] = list(options.stop_strings)
    if method is not None:
        body["method"] = method
    return {name: value for name, value in {**body, **extra}.items() if value is not None}


def as_read(prompt: ContextPrompt, options: GenerationOptions) -> ContextPrompt:
    """What `rag-middle serve` makes of a prompt whose documents travel by themselves."""
    if resource(options) == COMPLETIONS:  # documents stand before a text, not within it
        return ContextPrompt("", prompt.documents, prompt.prefix + prompt.suffix)
    before, after = (MarkedText(literal(text)) for text in (prompt.prefix, prompt.suffix))
    return prompt_of_parts([before, *prompt.documents, after])


def check_sending(documents: SendDocuments, extra: Mapping[str, Any]) -> None:
    """Refuse what could not be read on the other side, or would be read otherwise.

    Raises:
        EndpointConfigError: markers without a key that the server shares, or extra fields that
            are made here.
    """
    if documents == "marked" and not os.environ.get(MARKER_KEY_VARIABLE):
        raise EndpointConfigError(
            f"Marked documents are read by a server that shares the key: set {MARKER_KEY_VARIABLE} "
            "to the same secret here and there, or send them with ",
            Argument("send_documents", "field"),
            ".",
        )
    own = sorted({"model", "messages", "prompt", "stream", "n", "documents"} & extra.keys())
    if own:
        raise EndpointConfigError(
            Argument("extra_body"), f" must leave out {', '.join(own)}: requests are made of them."
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answers to one request.

    Attributes:
        text: that the model wrote, as far as the server lets it through.
        finish_reason: why it ended.
        usage: token counts, 0 where the server tells none.
        served: what our own server says of the method and the documents; None elsewhere.
    """

    text: str
    finish_reason: FinishReason
    usage: Usage
    served: Mapping[str, Any] | None


def withheld() -> Reply:
    """The reply to a prompt that a content filter refuses."""
    usage = Usage(prompt_tokens=0, completion_tokens=0)
    return Reply(text="", finish_reason="content_filter", usage=usage, served=None)


def read_reply(reply: Mapping[str, Any], url: str, strikeout: KeyStrikeout) -> Reply:
    """The answer in a reply.

    Args:
        url: of the server.
        strikeout: of its key.

    No text beside a reason why it ended is an empty answer, and beside a refusal a withheld one.

    Raises:
        EndpointReplyError: there is none, thinking has used up its tokens, the server broke it
            off, or the model calls a tool.
    """
    choice = _choice(reply)
    if choice is None:
        raise EndpointReplyError(
            f"{url} sent a reply without an answer (its fields: {shortened(repr(list(reply)))}). ",
            *CHECK_ADDRESS,
        )
    message = choice.get("message", choice)
    message = message if isinstance(message, Mapping) else {}
    content = message.get("content", message.get("text"))
    text = _of_parts(content)
    finish = choice.get("finish_reason")
    _check_end(finish, url, calls=bool(message.get("tool_calls")) and not text)
    reason = _finish_reason(finish)
    thought = any(message.get(name) for name in _THINKING) or _thought_unseen(reply)
    thought = thought or _has_part(content, _THINKING_PARTS)
    is_text = isinstance(text, str)
    if not (is_text and text) and reason == "length" and thought:
        raise _only_thought(url)
    refused = message.get("refusal") or _has_part(content, _REFUSAL_PARTS)
    if not (is_text and text) and refused:
        text, reason = "", "content_filter"
    elif text is None and isinstance(finish, str) and "content" in message:
        text = ""
    if not isinstance(text, str):
        raise _no_text(text, choice, url)
    return Reply(
        text=strikeout.take(text) + strikeout.rest(),
        finish_reason=reason,
        usage=_usage(reply),
        served=_served(reply),
    )


def _of_parts(content: object) -> object:
    """Text that comes as a list of its parts, as one; anything else as it is."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, Mapping)]
    texts = [part.get("text") for part in parts if part.get("type") not in _THINKING_PARTS]
    whole = [text for text in texts if isinstance(text, str)]
    return "".join(whole) if whole else content


def _has_part(content: object, types: Sequence[str]) -> bool:
    """Whether a content is a list with a part of one of these types."""
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") in types for part in content
    )


def _finish_reason(said: object) -> FinishReason:
    # Some add why: "content_filter: SAFETY".
    word = said.partition(":")[0].strip().lower() if isinstance(said, str) else ""
    if word in _FILTERED:
        return "content_filter"
    return "length" if word in _LENGTH else "stop"


def _check_end(said: object, url: str, *, calls: bool) -> None:
    """Raise `EndpointReplyError` for an end that leaves no answer.

    Args:
        said: why it ended, in the server's words.
        calls: it has calls of tools, and no text.
    """
    word = said.lower() if isinstance(said, str) else ""
    if word in _BROKEN_OFF:
        raise _broken_off(f"finish_reason {said!r}", url)
    if calls or word in _CALLS:
        raise EndpointReplyError(
            f"The model at {url} calls a tool instead of answering, and only local models call "
            "tools here. Show it none in ",
            Argument("extra_body"),
            ", or add 'tool_choice': 'none' there.",
        )


def broken_off(reply: Mapping[str, Any], url: str) -> EndpointReplyError | None:
    """The error of an answer that the server broke off by a failure of its own, if it is one.

    Some say so by the reason why it ended; others, such as OpenRouter, by an error beside it.
    """
    choice = _choice(reply) or {}
    said = choice.get("finish_reason")
    if isinstance(said, str) and said.lower() in _BROKEN_OFF:
        return _broken_off(f"finish_reason {said!r}", url)
    error = choice.get("error") or reply.get("error")
    return _broken_off(f"error {shortened(repr(error))}", url) if error else None


def _broken_off(why: str, url: str) -> EndpointReplyError:
    return EndpointReplyError(
        f"{url} broke an answer off ({why}). Ask again; if it stays, look at the server's log."
    )


def _thought_unseen(reply: Mapping[str, Any]) -> bool:
    """Whether the token counts tell of thinking that the server does not show."""
    usage = reply.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    return isinstance(details, Mapping) and is_whole(details.get("reasoning_tokens"), 1)


def _only_thought(url: str) -> EndpointReplyError:
    return EndpointReplyError(
        f"The model at {url} has spent all of its tokens on thinking. Allow more with ",
        Argument("max_new_tokens"),
        ", or turn thinking off on the server.",
    )


def _no_text(text: object, choice: Mapping[str, Any], url: str) -> EndpointReplyError:
    kind = "is missing" if text is None else f"is of type {type(text).__name__}"
    return EndpointReplyError(
        f"{url} sent an answer whose text {kind}: {shortened(repr(dict(choice)))}. Choose a "
        "model that generates text with ",
        Argument("model"),
        ".",
    )


class StreamedText:
    """An answer that comes in pieces.

    Args:
        url: of the server.
        strikeout: of its key.
    """

    def __init__(self, url: str, strikeout: KeyStrikeout) -> None:
        self._url = url
        self._strikeout = strikeout
        self._pieces: list[str] = []
        self._thought = False
        self._refused = False
        self._calls = False
        self._finish: object = None
        self._usage = Usage(prompt_tokens=0, completion_tokens=0)
        self._served: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """The text that can be handed on with an event.

        Raises:
            EndpointReplyError: it is something else than text, or an error of the server.
        """
        if error := broken_off(event, self._url):
            raise error
        choice = _choice(event) or {}
        delta = choice.get("delta", choice)
        delta = delta if isinstance(delta, Mapping) else {}
        content = delta.get("content", delta.get("text"))
        piece = _of_parts(content)
        has_thought = _has_part(content, _THINKING_PARTS)
        has_refusal = _has_part(content, _REFUSAL_PARTS)
        if not isinstance(piece, str):
            if piece is not None and not has_thought and not has_refusal:
                raise _no_text(piece, choice, self._url)
            piece = ""
        self._refused = self._refused or has_refusal
        self._thought = self._thought or has_thought
        self._thought = self._thought or any(delta.get(name) for name in _THINKING)
        self._thought = self._thought or _thought_unseen(event)
        self._refused = self._refused or bool(delta.get("refusal"))
        self._calls = self._calls or bool(delta.get("tool_calls"))
        piece = self._strikeout.take(piece)
        self._pieces.append(piece)
        self._finish = choice.get("finish_reason") or self._finish
        if event.get("usage"):
            self._usage = _usage(event)
        self._served = _served(event) or self._served
        return piece

    def rest(self) -> str:
        """The text that was held back, once no event comes any more."""
        self._pieces.append(self._strikeout.rest())
        return self._pieces[-1]

    def withhold(self) -> None:
        """Say that a content filter ended it."""
        self._finish = "content_filter"

    def reply(self, *, cancelled: bool) -> Reply:
        """The whole answer.

        Args:
            cancelled: it was ended from here.

        Raises:
            EndpointReplyError: as `read_reply`, or the stream ended before the answer did.
        """
        text = "".join(self._pieces)
        _check_end(self._finish, self._url, calls=self._calls and not text and not cancelled)
        reason = _finish_reason(self._finish)
        if not text and self._thought and reason == "length":
            raise _only_thought(self._url)
        if self._finish is None and not cancelled:
            raise EndpointReplyError(
                f"{self._url} ended the stream in the middle of an answer, after {len(text)} "
                "characters. Ask again; if it stays, look at the server's log."
            )
        if not text and self._refused:
            reason = "content_filter"
        return Reply(
            text=text,
            finish_reason="cancelled" if self._finish is None else reason,
            usage=self._usage,
            served=self._served,
        )


def check_served(
    reply: Reply, documents: int, url: str, *, sent: SendDocuments, method: str | None
) -> None:
    """Refuse an answer to documents that the server has not read as its method needs them.

    Args:
        method: that was asked for; None for whatever the server uses.

    Raises:
        EndpointReplyError: as text, they left its method without effect; otherwise, it does not say
            that it read them, or says otherwise.
    """
    served = reply.served or {}
    if sent == "text":
        if served.get("applied") is False and documents and served.get("method") != "none":
            raise EndpointReplyError(
                f"{url} uses {shortened(repr(served.get('method')))}, which had no effect: it "
                "found no documents in the text. Send them as documents, with ",
                Argument("send_documents", "field"),
                ", or start the server with --method none.",
            )
        return
    read = served.get("documents")
    if isinstance(read, list):
        read = len(read)
    name = served.get("method")
    if (name == method or (method is None and name)) and (read or 0) == documents:
        return
    said = shortened(repr(dict(served))) if served else "nothing of documents and methods"
    under = "" if method is None else f" under {method}"
    raise EndpointReplyError(
        f"{url} should have read {documents} documents{under}; its reply says {said}. ",
        Argument("send_documents"),
        " is for `rag-middle serve` with that method among those it allows; leave it out for other "
        "servers.",
    )


def _choice(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The answer of index 0, wherever it stands; one without an index counts as that."""
    choices = reply.get("choices")
    choices = choices if isinstance(choices, list) else []
    found = (c for c in choices if isinstance(c, Mapping) and c.get("index") in (None, 0))
    return next(found, None)


def _usage(reply: Mapping[str, Any]) -> Usage:
    usage = reply.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}

    def count(name: str) -> int:
        value = usage.get(name)
        return value if is_whole(value, 0) and value < _MOST_TOKENS else 0

    return Usage(prompt_tokens=count("prompt_tokens"), completion_tokens=count("completion_tokens"))


def _served(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    served = reply.get("rag_middle")
    return served if isinstance(served, Mapping) else None
