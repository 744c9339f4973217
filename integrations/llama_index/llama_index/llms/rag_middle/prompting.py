"""What a call sends: prompt and options, from fields of the LLM and arguments of the call."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ThinkingBlock
from llama_index.core.llms.llm import LLM, default_completion_to_prompt
from llama_index.llms.rag_middle.documents import block_content
from llama_index.llms.rag_middle.tools import call_fields, history_fields

from rag_middle import threads
from rag_middle.conventions.messages import reasoning_field, template_role
from rag_middle.generation import GenerationKwargs, Prompt
from rag_middle.options import checked_options, overridden
from rag_middle.tokens.conversation import Message, indices_of_answers

#: How documents get into a prompt here.
_MARKING = (
    "Put MarkDocuments() last among the node_postprocessors; instead of CitationQueryEngine, whose "
    "nodes are made anew and lose the marks, use MarkedCitationQueryEngine. Calls that have no "
    "documents by nature (condensing a question, choosing a query engine) are meant to be so."
)


class UnwrittenPrompt(str):
    """A prompt of an engine that the LLM's own functions have not written yet."""


def completion_request(llm: LLM, prompt: str, formatted: bool, options: dict[str, Any]) -> Request:
    """A request for a completion.

    A `formatted` prompt is read as it is. Nobody can tell its template from what was filled in, so
    nothing in it becomes a control token, unless it is an `UnwrittenPrompt` or the caller gives
    ``allow_control_tokens=True``. The `options` are those of `call_options`.
    """
    if formatted and not isinstance(prompt, UnwrittenPrompt):
        return Request(prompt, {**options, "template": "raw"})
    if llm.system_prompt:
        options.setdefault("system", llm.system_prompt)
    if llm.completion_to_prompt is default_completion_to_prompt:
        if llm.query_wrapper_prompt:
            prompt = llm.query_wrapper_prompt.format(query_str=prompt)
        return Request(prompt, options)
    complete, _ = _functions(llm)

    def template(messages: Sequence[Message]) -> str:
        *system, user = messages
        return complete(_extended(llm, user["content"], system[0]["content"] if system else None))

    return Request(prompt, {**options, "template": template})


def chat_request(
    llm: LLM, messages: Sequence[ChatMessage], options: dict[str, Any], *, has_chat_template: bool
) -> Request:
    """A request for an answer: through the chat template, else through `messages_to_prompt`."""
    _, chat = _functions(llm)
    if has_chat_template and chat is generic_messages:
        with_tools = bool(options.get("tools"))
        messages = [m for m in messages if not _only_calls(m) or (with_tools and call_fields(m))]
        return Request(chat_messages(messages, with_tools=with_tools), options)

    def template(contents: Sequence[Message]) -> str:
        return chat(_as_chat_messages(contents, messages))

    return Request(_for_function(messages), {**options, "template": template})


def call_options(
    own: Mapping[str, Any], given: Mapping[str, Any], stop_strings: Sequence[str]
) -> dict[str, Any]:
    """Keyword arguments of `RagMiddleModel.generate`.

    Args:
        own: options of the LLM.
        given: options of the call, which come first.
        stop_strings: of the LLM.

    Raises:
        UnsupportedGenerationError: one that does not exist or makes no sense.
    """
    options = overridden({"missing_documents_hint": _MARKING, **own}, given)
    if stop_strings:
        stop = options.get("stop", ())
        options["stop"] = [*([stop] if isinstance(stop, str) else stop), *stop_strings]
    beside = ("method", "method_options")
    checked_options(
        {name: value for name, value in options.items() if name not in beside},
        allowed=GenerationKwargs,
    )
    return options


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


def _for_function(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages for a function of the caller."""
    return [
        {**converted, "content": None} if _only_calls(message) else converted  # "" is an answer
        for converted, message in zip(chat_messages(messages), messages, strict=True)
    ]


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
    messages: Sequence[ChatMessage], *, with_tools: bool = False
) -> list[dict[str, Any]]:
    """Messages as `RagMiddleModel` reads them: texts, or prompts with their documents.

    Calls and messages of tools are such with `with_tools`; else tools are quoted by the user.

    Raises:
        PromptError: a message holds something else than text.
    """
    roles = [template_role(message.role.value) for message in messages]
    fields = [history_fields(message) if with_tools else {} for message in messages]
    spoken = [
        (role, "tool_calls" in own or _only_calls(message), bool((message.content or "").strip()))
        for role, own, message in zip(roles, fields, messages, strict=True)
    ]
    answered = max(indices_of_answers(spoken), default=-1)
    return [
        {
            "role": role,
            "content": block_content(message.blocks, index, earlier=index < answered),
            **own,
            **_thinking(message),
        }
        for index, (role, own, message) in enumerate(zip(roles, fields, messages, strict=True))
    ]


def _thinking(message: ChatMessage) -> dict[str, Any]:
    blocks = message.blocks if message.role == MessageRole.ASSISTANT else ()
    return reasoning_field(block.content for block in blocks if isinstance(block, ThinkingBlock))


def _only_calls(message: ChatMessage) -> bool:
    """Whether the model calls tools in it, and says nothing."""
    calls = call_fields(message) or message.additional_kwargs.get("tool_calls")
    return bool(calls) and not (message.content or "").strip()


T = TypeVar("T")


async def in_thread(call: Callable[[Request], T], request: Request) -> T:
    """``call(request)`` in a thread. Cancelling the task ends the generation after its token."""

    def cancellable(cancel: threading.Event) -> T:
        # A caller's own event may serve other requests too and is not ours to set.
        return call(Request(request.prompt, {"cancel": cancel, **request.options}))

    return await threads.in_thread(cancellable)


async def streamed_in_thread(
    call: Callable[[Request], Generator[T, None, None]], request: Request
) -> AsyncGenerator[T, None]:
    """An asynchronous generator of what ``call(request)`` yields.

    The generation starts, and is refused, here; leaving the generator early ends it.
    """
    cancel = threading.Event()
    cancellable = Request(request.prompt, {"cancel": cancel, **request.options})
    pieces = await threads.in_thread(lambda _: call(cancellable))
    return threads.pieces_in_thread(pieces, cancel)
