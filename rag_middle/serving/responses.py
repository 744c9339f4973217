"""What goes back to a client: whole answers, and the chunks of a streamed one."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from uuid import uuid4

from rag_middle.conventions.citations import citation_fields
from rag_middle.conventions.messages import openai_logprobs
from rag_middle.generation import Generation, TokenLogProbability
from rag_middle.serving.prompts import RequestPrompt

Json = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Choice:
    """One answer on its way.

    Attributes:
        index: among those of the request.
        prompt: that it answers.
        tokens: so far, where log-probabilities were asked for.
        text_length: of the text so far, in characters.
        result: once it has ended.
    """

    index: int
    prompt: RequestPrompt
    tokens: list[TokenLogProbability] = field(default_factory=list)
    text_length: int = 0
    result: Generation | None = None


class Reply(ABC):
    """Answers to one request, in the shape of its endpoint.

    Args:
        model: as clients call it.
        method: as clients call it.
        token_text: what a token adds to a text.
        with_log_probabilities: whether they were asked for.
        with_citations: whether the client wants them.
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(
        self,
        *,
        model: str,
        method: str,
        token_text: Callable[[int], str],
        with_log_probabilities: bool,
        with_citations: bool,
    ) -> None:
        self._head = {
            "id": f"{self.prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._method = method
        self._token_text = token_text
        self._with_log_probabilities = with_log_probabilities
        self._with_citations = with_citations

    def whole(self, choices: Sequence[Choice]) -> Json:
        """All answers at once."""
        return {
            **self._head,
            "object": self.whole_object,
            "choices": [
                {
                    "index": choice.index,
                    **self._content(choice),
                    "logprobs": self._logprobs(choice, choice.tokens, 0),
                    **self._ending(choice),
                }
                for choice in choices
            ],
            "usage": _usage(choices),
            "rag_middle": self._facts(choices[0]),
        }

    def opening(self, choice: Choice) -> Json | None:
        """The first chunk of an answer, if there is one without text."""
        return None

    def chunk(self, choice: Choice, text: str, tokens: Sequence[TokenLogProbability]) -> Json:
        """New text of an answer."""
        offset, choice.text_length = choice.text_length, choice.text_length + len(text)
        return self._chunk(
            {
                "index": choice.index,
                **self._piece(text),
                "logprobs": self._logprobs(choice, tokens, offset),
                "finish_reason": None,
            }
        )

    def closing(self, choice: Choice) -> Json:
        """The last chunk of an answer: why it ended, and what of it is only known now."""
        return {
            **self._chunk(
                {
                    "index": choice.index,
                    **self._last_piece(choice),
                    "logprobs": None,
                    **self._ending(choice),
                }
            ),
            "rag_middle": self._facts(choice),
        }

    def usage_chunk(self, choices: Sequence[Choice]) -> Json:
        """The chunk with token counts, and no answer."""
        return {
            **self._head,
            "object": self.chunk_object,
            "choices": [],
            "usage": _usage(choices),
        }

    def _chunk(self, choice: Json) -> Json:
        return {**self._head, "object": self.chunk_object, "choices": [choice]}

    def _ending(self, choice: Choice) -> Json:
        assert choice.result is not None
        calls = choice.result.tool_calls and choice.result.finish_reason == "stop"
        return {
            "finish_reason": "tool_calls" if calls else choice.result.finish_reason,
            "stop_reason": choice.result.stop,
            "rag_middle": self._facts(choice),
        }

    def _facts(self, choice: Choice) -> Json:
        result = choice.result
        assert result is not None
        return {
            "method": self._method,
            "applied": result.applied,
            "documents": result.documents,
            "document_order": [int(name or 0) for name in result.document_ids],
            "dropped_documents": [int(document.id or 0) for document in result.dropped_documents],
            "unread_markers": choice.prompt.has_unread_markers,
            "seed": result.seed,
        }

    def _citations(self, choice: Choice) -> Json:
        assert choice.result is not None
        dropped = {document.id for document in choice.result.dropped_documents}
        dropped -= {*choice.result.document_ids}  # of a document that a method repeats, a copy
        read = [
            None if str(index) in dropped else document
            for index, document in enumerate(choice.prompt.documents)
        ]
        return citation_fields(choice.result.text, read, wanted=self._with_citations)

    @abstractmethod
    def _content(self, choice: Choice) -> Json: ...

    @abstractmethod
    def _piece(self, text: str) -> Json: ...

    @abstractmethod
    def _last_piece(self, choice: Choice) -> Json: ...

    @abstractmethod
    def _logprobs(
        self, choice: Choice, tokens: Sequence[TokenLogProbability], offset: int
    ) -> Json | None: ...


class ChatReply(Reply):
    """Of ``/v1/chat/completions``."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choice: Choice) -> Json | None:
        """Who speaks."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk(
            {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        )

    def _content(self, choice: Choice) -> Json:
        assert choice.result is not None
        text = choice.result.text + _unread_calls(choice.result)
        calls = _calls(choice.result)
        message = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
            **({"tool_calls": calls} if calls else {}),
        }
        return {"message": {**message, **self._citations(choice)}}

    def _piece(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def _last_piece(self, choice: Choice) -> Json:
        assert choice.result is not None
        delta = self._citations(choice)
        if unread := _unread_calls(choice.result):
            delta["content"] = unread
        if calls := _calls(choice.result):
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        return {"delta": delta}

    def _logprobs(
        self, choice: Choice, tokens: Sequence[TokenLogProbability], offset: int
    ) -> Json | None:
        return openai_logprobs(tokens, self._token_text) if self._with_log_probabilities else None


class TextReply(Reply):
    """Of ``/v1/completions``."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _content(self, choice: Choice) -> Json:
        assert choice.result is not None
        return {"text": choice.result.text, **self._citations(choice)}

    def _piece(self, text: str) -> Json:
        return {"text": text}

    def _last_piece(self, choice: Choice) -> Json:
        return {"text": "", **self._citations(choice)}

    def _logprobs(
        self, choice: Choice, tokens: Sequence[TokenLogProbability], offset: int
    ) -> Json | None:
        if not self._with_log_probabilities:
            return None
        texts = [self._token_text(token.token_id) for token in tokens]
        offsets = list(accumulate(map(len, texts[:-1]), initial=offset)) if texts else []
        return {
            "tokens": texts,
            "token_logprobs": [token.log_probability for token in tokens],
            "top_logprobs": [
                # Parts of characters have the same text: the likeliest of them stays.
                {
                    self._token_text(other): log_probability
                    for other, log_probability in reversed(token.alternatives)
                }
                for token in tokens
            ],
            "text_offset": offsets,
        }


def _calls(result: Generation) -> list[Json]:
    """Calls of tools in OpenAI's form, with their arguments as a string."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in result.tool_calls
    ]


def _unread_calls(result: Generation) -> str:
    """What begins like a call of a tool and is none: text, so that nothing is lost."""
    return "".join(call.text for call in result.invalid_tool_calls)


def _usage(choices: Sequence[Choice]) -> Mapping[str, int]:
    """Token counts; a prompt with several answers counts once."""
    results = [(id(choice.prompt), choice.result) for choice in choices if choice.result]
    prompt_tokens = sum({prompt: result.usage.prompt_tokens for prompt, result in results}.values())
    new_tokens = sum(result.usage.completion_tokens for _, result in results)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }
