"""Haystack's chat messages to those of a chat template, and what was generated back."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    FinishReason,
    StreamingChunk,
    TextContent,
    ToolCall,
    ToolCallDelta,
)
from haystack.dataclasses.chat_message import ToolCallResult

from rag_middle import Document, Generation, PromptError
from rag_middle.generation import GenerationStream
from rag_middle.integration import (
    MarkedText,
    citations_in,
    message_fields,
    openai_logprobs,
    with_contents,
)


def prompt_messages(
    messages: Sequence[ChatMessage], documents: Sequence[Document], *, with_tools: bool
) -> list[dict[str, Any]]:
    """Messages as `RagMiddleModel` reads them.

    Args:
        messages: in order.
        documents: to stand at the beginning of the last message of the user.
        with_tools: calls and results of tools go to the chat template as what they are. Else
            results become messages of the user: most templates refuse those of a tool.

    Raises:
        PromptError: a message holds something else than text.
    """
    turns: list[tuple[dict[str, Any], list[MarkedText]]] = []
    for index, message in enumerate(messages):
        if message.images or message.files:
            raise PromptError(
                f"Message {index} holds an image or a file, and this model reads text only. Pass "
                "the text of files as documents."
            )
        for result in message.tool_call_results:
            origin = result.origin
            fields = message_fields(
                "tool", with_tools=with_tools, result_of=(origin.id, origin.tool_name)
            )
            turns.append((fields, [MarkedText(_text_of_result(result, index))]))
        text = "\n".join(message.texts)
        says = message.texts and (text.strip() or not message.tool_calls)
        if says or (with_tools and message.tool_calls):
            fields = message_fields(
                message.role.value,
                with_tools=with_tools,
                calls=[(call.id, call.tool_name, call.arguments) for call in message.tool_calls],
                thinking=[thought.reasoning_text for thought in message.reasonings],
            )
            turns.append((fields, [MarkedText(text)]))
    return with_contents(turns, documents)


def _text_of_result(result: ToolCallResult, index: int) -> str:
    if isinstance(result.result, str):
        return result.result
    parts = [part.text for part in result.result if isinstance(part, TextContent)]
    if len(parts) < len(result.result):
        raise PromptError(
            f"Message {index} holds an image or a file that {result.origin.tool_name!r} returned, "
            "and this model reads text only."
        )
    return "\n".join(parts)


def reply(
    generation: Generation, model_name: str, prompt: object, token_text: Callable[[int], str]
) -> ChatMessage:
    """The message of the assistant.

    Args:
        generation: what was generated.
        model_name: for its meta.
        prompt: what it answers; its documents may be cited.
        token_text: what a token adds to a text.
    """
    calls = [
        ToolCall(tool_name=call.name, arguments=dict(call.arguments), id=call.id)
        for call in generation.tool_calls
    ]
    citations = citations_in(generation, prompt, "plain")
    meta = {
        "index": 0,
        **_facts(generation, model_name),
        "rag_middle": {**generation.report(), "citations": citations},
    }
    if generation.log_probabilities:
        meta["logprobs"] = openai_logprobs(generation.log_probabilities, token_text)
    return ChatMessage.from_assistant(
        # Haystack refuses messages that hold nothing at all.
        text=generation.text if generation.text or not calls else None,
        tool_calls=calls,
        meta=meta,
    )


def streaming_chunks(
    stream: GenerationStream, model_name: str, source: ComponentInfo
) -> Generator[StreamingChunk, None, None]:
    """An answer in chunks: its text as it comes, then its calls, then why it ended.

    Closing them ends the generation.
    """
    block = 0
    with stream:
        for piece in filter(None, stream):
            yield StreamingChunk(piece, {"model": model_name}, source, index=0, start=block == 0)
            block = 1
    generation = stream.result
    calls = [
        ToolCallDelta(
            index=index,
            tool_name=call.name,
            arguments=json.dumps(dict(call.arguments), ensure_ascii=False),
            id=call.id,
        )
        for index, call in enumerate(generation.tool_calls, start=block)
    ]
    if calls:
        yield StreamingChunk(
            "", {"model": model_name}, source, index=block, tool_calls=calls, start=True
        )
    facts = _facts(generation, model_name)
    yield StreamingChunk("", facts, source, finish_reason=facts["finish_reason"])


def _facts(generation: Generation, model_name: str) -> dict[str, Any]:
    """Of an answer, under the names that Haystack's generators use."""
    ended = "tool_calls" if generation.tool_calls else generation.finish_reason
    return {
        "model": model_name,
        "finish_reason": cast("FinishReason", ended),
        "usage": generation.to_dict()["usage"],
    }
