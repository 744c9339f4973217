"""From LangChain's messages to those of a chat template, documents in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage

from langchain_rag_middle.documents import as_document
from rag_middle import Document as PromptDocument
from rag_middle.integration import MarkedText, content_parts, message_fields, with_contents

#: Blocks of an answer that are not its text.
_NO_TEXT = frozenset(
    "reasoning thinking redacted_thinking tool_call tool_use invalid_tool_call server_tool_call "
    "server_tool_result non_standard".split()
)

#: How OpenAI's and Anthropic's models end the types of others (``function_call``, ...).
_TRACES = ("_call", "_call_output", "_tool_use", "_tool_result")

#: A piece of a message: text, or a document.
Part = str | PromptDocument


def prompt_messages(
    messages: Sequence[BaseMessage],
    documents: Sequence[PromptDocument] = (),
    *,
    with_tools: bool = False,
    counted: bool = False,
) -> list[dict[str, Any]]:
    """Messages as `RagMiddleModel` reads them.

    Documents come from marked text, from blocks of every convention that the server reads (of type
    ``search_result``, ``document``, ``text-plain``, ...), from `documents`, and from tools whose
    artifact says which documents their content holds. Within a message they are put together where
    the first one stands. Neighbouring messages of the user and of tools, of which several hold
    documents, become one.

    Args:
        messages: in order.
        documents: more, to stand at the beginning of the last message of the user.
        with_tools: calls and messages of tools go to the chat template as what they are; else
            tools are quoted by the user.
        counted: to be counted and not sent, whatever they hold.

    Raises:
        PromptError: a message holds something else than text, or there are none.
        MarkerError: marked documents of this turn do not stand together.
    """
    turns: list[tuple[dict[str, Any], list[MarkedText | PromptDocument]]] = []
    for index, message in enumerate(messages):
        parts = _parts(message, index)
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        if calls and not any(isinstance(part, PromptDocument) or part.strip() for part in parts):
            if not with_tools:
                continue  # calls a tool and says nothing
            parts = []
        read = _marked(parts)
        fields = _fields(message, with_tools)
        previous_fields, previous = turns[-1] if turns else ({"role": ""}, [])
        of_user = fields["role"] == previous_fields["role"] == "user"
        if of_user and _hold_documents(previous) and _hold_documents(read):
            previous += read
        else:
            turns.append((fields, read))
    return with_contents(turns, documents, counted=counted)


def _fields(message: BaseMessage, with_tools: bool) -> dict[str, Any]:
    if isinstance(message, ToolMessage):
        result_of = (message.tool_call_id, message.name)
        return message_fields("tool", with_tools=with_tools, result_of=result_of)
    # Chunks of messages are named after their class ("AIMessageChunk").
    name = message.role if isinstance(message, ChatMessage) else message.type
    role = name.removesuffix("MessageChunk").lower()
    if not isinstance(message, AIMessage):
        return message_fields(role, with_tools=with_tools)
    calls = ((call["id"], call["name"], call["args"]) for call in message.tool_calls)
    thinking = (
        block.get("reasoning") for block in message.content_blocks if block["type"] == "reasoning"
    )
    return message_fields(role, with_tools=with_tools, calls=calls, thinking=thinking)


def _parts(message: BaseMessage, index: int) -> list[Part]:
    """Texts and documents of a message, in order."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    of_answer = isinstance(message, AIMessage)
    parts: list[Part] = []
    for block in blocks:
        if isinstance(block, str):
            parts.append(block)
        elif not _says_nothing(block.get("type"), of_answer):
            parts += content_parts(block, f"A block of message {index}")
    parts = [part for part in parts if part != ""] or [""]
    texts = [part for part in parts if isinstance(part, str)]
    if of_answer:
        return ["".join(texts)]  # it may be cut anywhere
    if isinstance(message, ToolMessage) and len(texts) == len(parts):
        of_artifact = _of_artifact("\n\n".join(texts), _artifact_documents(message.artifact))
        return list(of_artifact) or parts
    return parts


def _marked(parts: Sequence[Part]) -> list[MarkedText | PromptDocument]:
    """Texts in which markers have been looked for; as one, unless documents have to be gathered."""
    marked = [MarkedText(part) if isinstance(part, str) else part for part in parts]
    texts = [part for part in marked if isinstance(part, MarkedText)]
    if 1 < len(texts) == len(parts) and sum(text.has_documents() for text in texts) < 2:
        return [MarkedText("\n\n".join(text.text for text in texts))]
    return marked


def _hold_documents(parts: Sequence[MarkedText | PromptDocument]) -> bool:
    return any(isinstance(part, PromptDocument) or part.has_documents() for part in parts)


def _of_artifact(text: str, documents: Sequence[PromptDocument]) -> list[PromptDocument]:
    """What a tool says as the documents of its artifact; nothing where it says anything else.

    LangChain sends no artifact to a model: it tells here where documents begin and end, and their
    ids. The content is marked, one document for each, or it is their texts alone, in order.
    """
    documents = [replace(document, title=None) for document in documents]
    pieces = MarkedText(text).pieces()
    marked = [piece for piece in pieces if isinstance(piece, PromptDocument)]
    between = "".join(piece for piece in pieces if isinstance(piece, str))
    if marked and len(marked) == len(documents) and not between.strip():
        pairs = zip(marked, documents, strict=True)
        return [replace(document, text=read.text) for read, document in pairs]
    documents = [document for document in documents if document.text.strip()]
    for document in documents:
        text = text.lstrip()
        if not text.startswith(document.text):
            return []
        text = text.removeprefix(document.text)
    return [] if text.strip() else documents


def _says_nothing(kind: object, of_answer: bool) -> bool:
    """Whether a block of this type is no text; of an answer, also what other models write."""
    if not isinstance(kind, str):
        return False
    return kind in _NO_TEXT or (of_answer and kind.endswith(_TRACES))


def _artifact_documents(artifact: object) -> list[PromptDocument]:
    """The documents of an artifact; none where it holds anything else."""
    entries = artifact if isinstance(artifact, list | tuple) else ()
    read = [_artifact_document(entry) for entry in entries]
    documents = [document for document in read if document is not None]
    return documents if len(documents) == len(read) else []


def _artifact_document(entry: object) -> PromptDocument | None:
    names = {field.name for field in fields(PromptDocument)}
    if isinstance(entry, Mapping) and {*entry} == names and isinstance(entry["text"], str):
        return PromptDocument(**entry)  # as checkpoints, and histories in JSON, have it
    document = as_document(entry)
    if document is None:
        return entry if isinstance(entry, PromptDocument) else None
    text = document.page_content.strip()
    return PromptDocument(text, id=document.id, metadata=document.metadata)
