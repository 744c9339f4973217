"""From the messages and documents of a request to a prompt that knows where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag_middle.conventions.messages import Part, speaks, template_role, with_contents
from rag_middle.documents import ContextPrompt, Document, MarkedText
from rag_middle.generation import Prompt
from rag_middle.markers import MARKER_KEY_VARIABLE, literal
from rag_middle.serving.errors import ApiError
from rag_middle.serving.schema import ChatMessage
from rag_middle.tokens.conversation import Conversation


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
        role, content = template_role(message.role, with_tools=has_tools), message.content
        pieces = [content] if isinstance(content, str) else [p for b in content or () for p in b]
        trusts = trusted and role != "assistant"
        parts = [MarkedText(p, trusted=trusts) if isinstance(p, str) else p for p in pieces]
        fields = {"role": role, **(message.tool_fields if has_tools else {})}
        if role == "assistant":
            # A message of calls alone is left out where there are no tools.
            calls_only = message.tool_calls and not (has_tools or speaks(parts))
            if calls_only or (content is None and not message.tool_calls):
                continue
            if message.reasoning_content is not None:
                fields["reasoning_content"] = message.reasoning_content
        turns.append((fields, parts))
    conversation = Conversation.of_messages(with_contents(turns, documents))
    # Texts of messages are what they are by now: no second look for markers in them.
    prompt = [{**m, "content": literal(str(m["content"] or ""))} for m in conversation.messages]
    if conversation.at is not None:
        prompt[conversation.at]["content"] = _numbered(conversation.prompt)
    of_others = [parts for fields, parts in turns if fields["role"] != "assistant"]
    texts = [part for parts in of_others for part in parts if isinstance(part, MarkedText)]
    sources = conversation.prompt.documents
    return RequestPrompt(prompt, sources, _has_strays(texts, sources))


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


def _numbered(prompt: ContextPrompt) -> ContextPrompt:
    """The prompt with its documents called by their index."""
    documents = enumerate(prompt.documents)
    return prompt.with_documents(replace(document, id=str(index)) for index, document in documents)
