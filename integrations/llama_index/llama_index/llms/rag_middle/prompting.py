"""What a call sends: prompt and options, from fields of the LLM and arguments of the call."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ThinkingBlock
from llama_index.core.llms.llm import LLM, default_completion_to_prompt
from llama_index.llms.rag_middle.documents import message_parts
from llama_index.llms.rag_middle.tools import tool_calls

from rag_middle import Document, integration
from rag_middle.generation import Prompt

Message = Mapping[str, Any]

#: How documents get into a prompt here.
MARKING = (
    "Put MarkDocuments() last among the node_postprocessors; instead of CitationQueryEngine, whose "
    "nodes are made anew and lose the marks, use MarkedCitationQueryEngine. Calls that have no "
    "documents by nature (condensing a question, choosing a query engine) are meant to be so."
)


class UnwrittenPrompt(str):
    """A prompt of an engine that the LLM's own functions have not written yet."""


def completion_request(
    llm: LLM,
    prompt: str,
    formatted: bool,
    options: dict[str, Any],
    documents: Sequence[Document] = (),
) -> Request:
    """A request for a completion, `documents` before the prompt.

    A `formatted` prompt is read as it is. Nobody can tell its template from what was filled in, so
    nothing in it becomes a control token, unless it is an `UnwrittenPrompt` or the caller gives
    ``allow_control_tokens=True``.
    """
    if formatted and not isinstance(prompt, UnwrittenPrompt):
        options = {**options, "template": "raw"}
        return Request(integration.with_documents(prompt, documents), options)
    if llm.system_prompt:
        options.setdefault("system", llm.system_prompt)
    if llm.completion_to_prompt is default_completion_to_prompt:
        if llm.query_wrapper_prompt:
            prompt = llm.query_wrapper_prompt.format(query_str=prompt)
        return Request(integration.with_documents(prompt, documents), options)
    complete, _ = _functions(llm)

    def template(messages: Sequence[Message]) -> str:
        *system, user = messages
        return complete(_extended(llm, user["content"], system[0]["content"] if system else None))

    prompted = integration.with_documents(prompt, documents)
    return Request(prompted, {**options, "template": template})


def chat_request(
    llm: LLM,
    messages: Sequence[ChatMessage],
    options: dict[str, Any],
    documents: Sequence[Document] = (),
    *,
    has_chat_template: bool,
) -> Request:
    """A request for an answer: through the chat template, else through `messages_to_prompt`.

    The `documents` stand before the last message of the user.
    """
    _, chat = _functions(llm)
    with_tools = bool(options.get("tools"))
    if has_chat_template and chat is generic_messages:
        kept = [m for m in messages if not _only_calls(m) or (with_tools and tool_calls(m))]
        return Request(chat_messages(kept, documents, with_tools=with_tools), options)

    def template(contents: Sequence[Message]) -> str:
        return chat(_as_chat_messages(contents, messages))

    read = chat_messages(messages, documents)
    prompt = [
        {**fields, "content": None} if _only_calls(message) else fields  # "" is an answer
        for fields, message in zip(read, messages, strict=True)
    ]
    return Request(prompt, {**options, "template": template})


def _functions(
    llm: LLM,
) -> tuple[Callable[[str], str], Callable[[Sequence[ChatMessage]], str]]:
    """`completion_to_prompt` and `messages_to_prompt`; LlamaIndex's own where there are none."""
    assert llm.completion_to_prompt is not None
    assert llm.messages_to_prompt is not None
    return llm.completion_to_prompt, llm.messages_to_prompt


def _extended(llm: LLM, prompt: str, system: str | None) -> str:
    """The prompt after the system prompt and inside the query wrapper, as LlamaIndex does it."""
    if system:
        prompt = f"{system}\n\n{prompt}"
    if llm.query_wrapper_prompt:
        prompt = llm.query_wrapper_prompt.format(query_str=prompt)
    return prompt


def _as_chat_messages(
    contents: Sequence[Message], originals: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """LlamaIndex's messages with other contents; those before the originals are system messages."""
    added = contents[: -len(originals)] if originals else contents
    system = [ChatMessage(role="system", content=message["content"]) for message in added]
    return system + [
        # Without their further arguments, which a function could write.
        ChatMessage(role=original.role, content=message["content"] or "")
        for message, original in zip(contents[len(added) :], originals, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the model.

    Attributes:
        prompt: what it reads.
        options: keyword arguments of `RagMiddleModel.generate`.
    """

    prompt: Prompt
    options: dict[str, Any]


def chat_messages(
    messages: Sequence[ChatMessage],
    documents: Sequence[Document] = (),
    *,
    with_tools: bool = False,
) -> list[dict[str, Any]]:
    """Messages as `RagMiddleModel` reads them: texts, or prompts with their documents.

    Calls and messages of tools are such with `with_tools`; else tools are quoted by the user.

    Raises:
        PromptError: a message holds something else than text.
    """
    turns = []
    for index, message in enumerate(messages):
        parts = [] if _only_calls(message) else message_parts(message, index)
        turns.append((_fields(message, with_tools), parts))
    return integration.with_contents(turns, documents)


def _fields(message: ChatMessage, with_tools: bool) -> dict[str, Any]:
    extra, result_of = message.additional_kwargs, None
    if message.role in (MessageRole.TOOL, MessageRole.FUNCTION):
        result_of = (extra.get("tool_call_id"), extra.get("name"))
    blocks = message.blocks if message.role == MessageRole.ASSISTANT else ()
    return integration.message_fields(
        message.role.value,
        with_tools=with_tools,
        calls=tool_calls(message),
        result_of=result_of,
        thinking=[block.content for block in blocks if isinstance(block, ThinkingBlock)],
    )


def _only_calls(message: ChatMessage) -> bool:
    """Whether the model calls tools in it, and says nothing."""
    calls = tool_calls(message) or message.additional_kwargs.get("tool_calls")
    return bool(calls) and not (message.content or "").strip()


T = TypeVar("T")


async def in_thread(call: Callable[[Request], T], request: Request) -> T:
    """``call(request)`` in a thread. Cancelling the task ends the generation after its token."""

    def cancellable(cancel: threading.Event) -> T:
        # A caller's own event may serve other requests too and is not ours to set.
        return call(Request(request.prompt, {"cancel": cancel, **request.options}))

    return await integration.in_thread(cancellable)


async def streamed_in_thread(
    call: Callable[[Request], Generator[T, None, None]], request: Request
) -> AsyncGenerator[T, None]:
    """An asynchronous generator of what ``call(request)`` yields.

    The generation starts, and is refused, here; leaving the generator early ends it.
    """
    cancel = threading.Event()
    cancellable = Request(request.prompt, {"cancel": cancel, **request.options})
    pieces = await integration.in_thread(lambda _: call(cancellable))
    return integration.pieces_in_thread(pieces, cancel)
