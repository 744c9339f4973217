"""From the messages and documents of a request to a prompt that knows where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_middle.conventions.messages import template_role
from rag_middle.documents import ContextPrompt, Document, MarkedText, gathered, prompt_of_parts
from rag_middle.errors import PromptError
from rag_middle.generation import Prompt
from rag_middle.markers import MARKER_KEY_VARIABLE, literal
from rag_middle.serving.errors import ApiError
from rag_middle.serving.schema import ChatMessage
from rag_middle.tokens.conversation import Conversation, indices_of_answers

Part = MarkedText | Document


@dataclass(frozen=True, slots=True)
class RequestPrompt:
    """A prompt of a request.

    Attributes:
        prompt: for `RagMiddleModel`; the ids of its documents are their indices in `documents`.
        documents: in the order of the request, with the client's ids.
        has_unread_markers: whether some text held markers that mark nothing here.
    """

    prompt: Prompt
    documents: tuple[Document, ...]
    has_unread_markers: bool


def chat_prompt(
    messages: Sequence[ChatMessage],
    documents: Sequence[Document],
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
        ApiError: all documents are marked with another key than the server's.
        PromptError: `documents`, and no message of the user.
        MarkerError: marked documents of this turn do not stand together, or trusted markers are
            unbalanced.
    """
    turns: list[tuple[dict[str, Any], list[Part]]] = []
    for message in messages:
        role = template_role(message.role, with_tools=has_tools)
        content = message.content
        said = [content] if isinstance(content, str) else [p for b in content or () for p in b]
        parts: list[Part] = [
            MarkedText(part, trusted=trusted and role != "assistant")
            if isinstance(part, str)
            else part
            for part in said
        ]
        fields = {"role": role, **(message.tool_fields if has_tools else {})}
        if role == "assistant":
            # A message of calls alone is left out where there are no tools.
            if message.tool_calls and not (has_tools or _says(parts)):
                continue
            if message.content is None and not message.tool_calls:
                continue
            if message.reasoning_content is not None:
                fields["reasoning_content"] = message.reasoning_content
        turns.append((fields, parts))
    if documents:
        of_user = [parts for fields, parts in turns if fields["role"] == "user"]
        if not of_user:
            raise PromptError("documents go with a question: add a message with the role 'user'.")
        of_user[-1][:0] = documents
    spoken = [
        (fields["role"], not parts or bool(fields.get("tool_calls")), _says(parts))
        for fields, parts in turns
    ]
    answered = max(indices_of_answers(spoken), default=-1)
    conversation = Conversation.of_messages(
        [
            {**fields, "content": _content(fields["role"], parts, at < answered, trusted)}
            for at, (fields, parts) in enumerate(turns)
        ]
    )
    texts = [
        part
        for fields, parts in turns
        for part in parts
        if isinstance(part, MarkedText) and fields["role"] != "assistant"
    ]
    # Texts of messages are what they are by now: no second look for markers in them.
    prompt = [{**m, "content": literal(str(m["content"] or ""))} for m in conversation.messages]
    if conversation.at is not None:
        prompt[conversation.at]["content"] = _numbered(conversation.prompt)
    sources = conversation.prompt.documents
    return RequestPrompt(prompt, sources, _has_strays(texts, sources))


def text_prompt(text: str, documents: Sequence[Document], *, trusted: bool) -> RequestPrompt:
    """A text with marked documents, or with `documents` before it."""
    marked = MarkedText(text, trusted=trusted)
    marked.warn_of_strays()
    prompt = marked.prompt()
    together = prompt.with_documents(gathered([*documents, *prompt.documents]))
    strays = _has_strays([marked], together.documents)
    return RequestPrompt(_numbered(together), together.documents, strays)


def _has_strays(texts: Sequence[MarkedText], documents: Sequence[object]) -> bool:
    """Whether some text holds markers that mark nothing; raises `ApiError` if no other would do."""
    if not documents and any(text.marked_elsewhere for text in texts):
        raise ApiError(
            400,
            "The text seems to hold documents marked with another key than this server's. Set the "
            f"same {MARKER_KEY_VARIABLE} for client and server, or send them as `documents`.",
            code="unreadable_markers",
        )
    return any(text.has_strays for text in texts)


def _says(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, MarkedText) or part.text.strip() for part in parts)


def _content(
    role: str, parts: Sequence[Part], earlier: bool, trusted: bool
) -> str | MarkedText | ContextPrompt:
    """A message's content; `earlier`: the model has answered since."""
    texts = [part for part in parts if isinstance(part, MarkedText)]
    if role == "assistant":  # nobody retrieved what the model itself said
        return "".join(text.text for text in texts)
    if len(parts) == len(texts) and sum(text.has_documents() for text in texts) < 2:
        joined = "\n\n".join(text.text for text in texts)
        return texts[0] if len(texts) == 1 else MarkedText(joined, trusted=trusted)
    return prompt_of_parts(parts, "last" if earlier else "single")


def _numbered(prompt: ContextPrompt) -> ContextPrompt:
    """The prompt with its documents called by their index."""
    documents = enumerate(prompt.documents)
    return prompt.with_documents(replace(document, id=str(index)) for index, document in documents)
