"""From the messages and documents of a request to a prompt that knows where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_middle.conventions.documents import CallerDocument, block_parts, counted
from rag_middle.conventions.messages import template_role
from rag_middle.documents import ContextPrompt, Document, MarkedText, gathered, prompt_of_parts
from rag_middle.errors import PromptError
from rag_middle.generation import Prompt
from rag_middle.markers import literal
from rag_middle.serving.schema import ChatMessage
from rag_middle.tokens.conversation import Conversation, indices_of_answers

_INDEX = "request_document"

Part = MarkedText | CallerDocument


@dataclass(frozen=True, slots=True)
class RequestPrompt:
    """A prompt of a request.

    Attributes:
        prompt: for `RagMiddleModel`; the ids of its documents are their indices in `documents`.
        documents: in the order of the request; None for one that was marked in a text.
        has_unread_markers: whether some text held markers that mark nothing here.
        marked_elsewhere: whether some text seems to hold documents that were marked with a key
            other than the server's.
    """

    prompt: Prompt
    documents: tuple[CallerDocument | None, ...]
    has_unread_markers: bool
    marked_elsewhere: bool


def chat_prompt(
    messages: Sequence[ChatMessage],
    documents: Sequence[CallerDocument],
    *,
    trusted: bool,
    has_tools: bool = False,
) -> RequestPrompt:
    """Messages, with documents from blocks, from marked text and from ``documents``.

    Within a message documents are put together where the first one stands; `documents` stand at
    the beginning of the last message of the user.

    Args:
        messages: in order.
        documents: of the request.
        trusted: take markers without a tag too, except in what the model said.
        has_tools: the request has tools, so the chat template writes earlier calls and results.

    Raises:
        PromptError: `documents`, and no message of the user.
        MarkerError: marked documents of this turn do not stand together, or trusted markers are
            unbalanced.
    """
    turns: list[tuple[str, list[Part]]] = []
    fields: list[dict[str, Any]] = []
    for message in messages:
        role = template_role(message.role, with_tools=has_tools)
        parts = _parts(message, trusted=trusted and role != "assistant")
        own = message.tool_fields if has_tools else {}
        # A message of calls alone is left out.
        if _says(parts) or own or role != "assistant" or (parts and not message.tool_calls):
            if role == "assistant" and message.reasoning_content is not None:
                own = {**own, "reasoning_content": message.reasoning_content}
            turns.append((role, parts))
            fields.append(own)
    if documents:
        of_user = [index for index, (role, _) in enumerate(turns) if role == "user"]
        if not of_user:
            raise PromptError("documents go with a question: add a message with the role 'user'.")
        turns[of_user[-1]][1][:0] = documents
    parts_in_order = iter(counted(part for _, parts in turns for part in parts))
    turns = [(role, [next(parts_in_order) for _ in parts]) for role, parts in turns]
    sources: list[CallerDocument] = []
    spoken = [
        (role, not parts or bool(own.get("tool_calls")), _says(parts))
        for (role, parts), own in zip(turns, fields, strict=True)
    ]
    answered = max(indices_of_answers(spoken), default=-1)
    conversation = Conversation.of_messages(
        [
            {
                **own,
                "role": role,
                "content": _content(role, parts, sources, earlier=at < answered, trusted=trusted),
            }
            for at, ((role, parts), own) in enumerate(zip(turns, fields, strict=True))
        ]
    )
    texts = [
        part
        for role, parts in turns
        for part in parts
        if isinstance(part, MarkedText) and role != "assistant"
    ]
    return _numbered(conversation, sources, texts)


def text_prompt(text: str, documents: Sequence[CallerDocument], *, trusted: bool) -> RequestPrompt:
    """A text with marked documents, or with `documents` before it."""
    marked = MarkedText(text, trusted=trusted)
    marked.warn_of_strays()
    prompt = marked.prompt()
    joined = gathered([*(source.document for source in documents), *prompt.documents])
    numbered = prompt.with_documents(
        replace(document, id=str(index)) for index, document in enumerate(joined)
    )
    if not prompt.documents and documents:  # a separator has to stand between them and the text
        numbered = ContextPrompt("", numbered.documents, numbered.suffix)
    sources = (*counted(documents), *(None for _ in prompt.documents))
    return RequestPrompt(numbered, sources, marked.has_strays, marked.marked_elsewhere)


def _says(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, MarkedText) or part.text.strip() for part in parts)


def _parts(message: ChatMessage, *, trusted: bool) -> list[Part]:
    if message.content is None:
        return []
    return [
        MarkedText(part, trusted=trusted) if isinstance(part, str) else part
        for part in block_parts(message.content)
    ]


def _content(
    role: str,
    parts: Sequence[Part],
    sources: list[CallerDocument],
    *,
    earlier: bool,
    trusted: bool,
) -> str | MarkedText | ContextPrompt:
    """A message's content; its documents are numbered as they go into `sources`.

    `earlier`: the model has answered since; `trusted`: as of `chat_prompt`.
    """
    texts = [part for part in parts if isinstance(part, MarkedText)]
    if role == "assistant":  # nobody retrieved what the model itself said
        return "".join(text.text for text in texts)
    if len(parts) == len(texts) and sum(text.has_documents() for text in texts) < 2:
        joined = "\n\n".join(text.text for text in texts)
        return texts[0] if len(texts) == 1 else MarkedText(joined, trusted=trusted)
    numbered: list[MarkedText | Document] = []
    for part in parts:
        if isinstance(part, CallerDocument):
            metadata = {**part.document.metadata, _INDEX: len(sources)}
            sources.append(part)
            numbered.append(replace(part.document, metadata=metadata))
        else:
            numbered.append(part)
    return prompt_of_parts(numbered, "last" if earlier else "single")


def _numbered(
    conversation: Conversation, sources: Sequence[CallerDocument], texts: Sequence[MarkedText]
) -> RequestPrompt:
    """The conversation with documents that are called by their index."""
    # Texts of messages are what they are by now: no second look for markers in them.
    messages = [
        {**message, "content": literal(str(message["content"] or ""))}
        for message in conversation.messages
    ]
    documents = conversation.prompt.documents
    if conversation.at is not None:
        messages[conversation.at]["content"] = conversation.prompt.with_documents(
            replace(document, id=str(index)) for index, document in enumerate(documents)
        )
    indices = [document.metadata.get(_INDEX) for document in documents]
    return RequestPrompt(
        messages,
        tuple(None if index is None else sources[index] for index in indices),
        any(text.has_strays for text in texts),
        any(text.marked_elsewhere for text in texts),
    )
