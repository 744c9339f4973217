"""From LangChain's messages to those of a chat template, documents in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, ToolMessage

from langchain_rag_middle.documents import DocumentPrompt, as_document
from langchain_rag_middle.tools import history_fields
from rag_middle import ContextPrompt
from rag_middle import Document as PromptDocument
from rag_middle.conventions.documents import content_parts, passed_documents
from rag_middle.conventions.messages import reasoning_field, template_role
from rag_middle.documents import MarkedText, split
from rag_middle.tokens.conversation import indices_of_answers, prompt_of_parts

#: Blocks of an answer that are not its text.
_NO_TEXT = frozenset(
    "reasoning thinking redacted_thinking tool_call tool_use invalid_tool_call server_tool_call "
    "server_tool_result non_standard".split()
)

#: How OpenAI's and Anthropic's models end the types of others (``function_call``, ...).
_TRACES = ("_call", "_call_output", "_tool_use", "_tool_result")

#: A piece of a message: text, or a document.
Part = str | PromptDocument
ReadPart = MarkedText | PromptDocument


def prompt_messages(
    messages: Sequence[BaseMessage],
    documents: Sequence[PromptDocument] = (),
    *,
    document_prompt: DocumentPrompt,
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
        document_prompt: how documents that are not text yet are written.
        with_tools: calls and messages of tools go to the chat template as what they are; else
            tools are quoted by the user.
        counted: to be counted and not sent: `trim_messages` counts parts of a history, and in
            reverse order, so an answered message may seem to be one of this turn.

    Raises:
        PromptError: a message holds something else than text, or there are none.
        MarkerError: marked documents of this turn do not stand together.
    """
    turns: list[tuple[str, list[ReadPart], dict[str, Any]]] = []
    for index, message in enumerate(messages):
        parts = [
            MarkedText(part) if isinstance(part, str) else part
            for part in _parts(message, index, document_prompt)
        ]
        fields = history_fields(message) if with_tools else {}
        calls = isinstance(message, AIMessage) and message.tool_calls
        if calls and not fields and not _says(parts):
            continue  # calls a tool and says nothing
        role = fields.pop("role", None) or _role(message)
        fields |= _thinking(message)
        previous = turns[-1] if turns else ("", [], {})
        if role == "user" == previous[0] and _documents(parts) and _documents(previous[1]):
            previous[1].extend(parts)
        else:
            turns.append((role, parts, fields))
    if documents:
        if "user" not in (role for role, _, _ in turns):
            turns.append(("user", [], {}))
        last = max(index for index, (role, _, _) in enumerate(turns) if role == "user")
        turns[last] = ("user", [*documents, *turns[last][1]], {})
    spoken = [(role, "tool_calls" in fields, _says(parts)) for role, parts, fields in turns]
    answered = max(indices_of_answers(spoken), default=-1)
    return [
        {"role": role, "content": _content(role, parts, at < answered, counted), **fields}
        for at, (role, parts, fields) in enumerate(turns)
    ]


def as_prompt_documents(given: Any, document_prompt: DocumentPrompt) -> list[PromptDocument]:
    """What was passed as ``documents=``: documents, strings, or what vLLM takes.

    Raises:
        PromptError: not a list of documents.
    """

    def read(entry: Any) -> PromptDocument | None:
        document = as_document(entry)
        return None if document is None else document_prompt.document(document)

    return passed_documents(given, read, "LangChain documents")


def _thinking(message: BaseMessage) -> dict[str, Any]:
    blocks = message.content_blocks if isinstance(message, AIMessage) else ()
    return reasoning_field(
        block.get("reasoning") for block in blocks if block["type"] == "reasoning"
    )


def _role(message: BaseMessage) -> str:
    name = message.role if isinstance(message, ChatMessage) else message.type
    # Chunks of messages are named after their class ("AIMessageChunk").
    return template_role(name.removesuffix("MessageChunk").lower())


def _parts(message: BaseMessage, index: int, document_prompt: DocumentPrompt) -> list[Part]:
    """Texts and documents of a message, in order."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    joined = isinstance(message, AIMessage)
    parts: list[Part] = []
    for block in blocks:
        if isinstance(block, str):
            texts: list[Part] = [block]
        elif _says_nothing(block.get("type"), joined):
            continue
        else:
            texts = content_parts(block, f"A block of message {index}")
        for part in texts:
            if part == "":
                continue
            if joined and parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part  # an answer's text may be cut anywhere
            else:
                parts.append(part)
    if isinstance(message, ToolMessage) and parts and all(isinstance(p, str) for p in parts):
        text = "\n\n".join(map(str, parts))
        return list(_of_artifact(text, _artifact_documents(message.artifact))) or parts
    return parts


def _of_artifact(text: str, documents: Sequence[PromptDocument]) -> list[PromptDocument]:
    """What a tool says as the documents of its artifact; nothing where it says anything else.

    LangChain sends no artifact to a model: it tells here where documents begin and end, and their
    ids. The content is marked, one document for each, or it is their texts alone, in order.
    """
    documents = [replace(document, title=None) for document in documents]
    pieces = split(text)
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


def _says(parts: Sequence[ReadPart]) -> bool:
    return any(isinstance(part, PromptDocument) or part.text.strip() for part in parts)


def _documents(parts: Iterable[ReadPart]) -> bool:
    return any(isinstance(part, PromptDocument) or part.has_documents() for part in parts)


def _content(
    role: str, parts: Sequence[ReadPart], earlier: bool, counted: bool
) -> str | MarkedText | ContextPrompt:
    """A message's content: its text, or a prompt where documents come in several parts.

    Args:
        role: whose message it is.
        parts: in order.
        earlier: the model has answered since.
        counted: as of `prompt_messages`.
    """
    texts = [part for part in parts if isinstance(part, MarkedText)]
    if role == "assistant":  # nobody retrieved what the model itself said
        return "".join(text.text for text in texts)
    if len(texts) == len(parts) and sum(text.has_documents() for text in texts) < 2:
        whole = texts[0] if len(texts) == 1 else MarkedText("\n\n".join(t.text for t in texts))
        return whole.prompt("last") if counted and whole.has_documents() else whole
    # What was said in an earlier turn must not make later ones fail.
    return prompt_of_parts(parts, "last" if earlier or counted else "single")
