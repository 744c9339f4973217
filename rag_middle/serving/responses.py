"""What goes back to a client: whole answers, and the chunks of a streamed one."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import uuid4

from starlette.requests import ClientDisconnect

from rag_middle.conventions.citations import openai_citations
from rag_middle.conventions.messages import openai_logprobs
from rag_middle.generation import Generation, TokenLogProbability
from rag_middle.serving.batching import AnswerJob, Event
from rag_middle.serving.errors import ApiError
from rag_middle.serving.schema import ChatRequest

Json = dict[str, Any]


class Reply:
    """Answers to one request."""

    def __init__(self, body: ChatRequest, token_text: Callable[[int], str]) -> None:
        self._body, self._token_text = body, token_text
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": body.model,
        }

    def whole(self, jobs: Sequence[AnswerJob]) -> Json:
        """All answers at once."""
        choices = []
        for job in jobs:
            fields, ending = self._end(job)
            text = _result(job).text + fields.pop("content", "")
            content = None if not text and "tool_calls" in fields else text
            message = {"role": "assistant", "content": content, "refusal": None, **fields}
            logprobs = self._logprobs(_result(job).log_probabilities)
            choices.append({"index": job.index, "message": message, "logprobs": logprobs, **ending})
        facts = {"usage": self._usage(jobs), "rag_middle": choices[0]["rag_middle"]}
        return {**self._head, "choices": choices, **facts}

    async def streamed(
        self, jobs: Sequence[AnswerJob], first: Event, rest: AsyncIterator[Event]
    ) -> AsyncIterator[str]:
        """Server-sent events."""
        event: Event | None = first
        for job in jobs:  # who speaks
            delta = {"role": "assistant", "content": ""}
            yield self._chunk(job, delta, None, {"finish_reason": None})
        try:
            while event:
                job, piece = event
                if piece:
                    text, logprobs = piece[0], self._logprobs(piece[1])
                    yield self._chunk(job, {"content": text}, logprobs, {"finish_reason": None})
                else:
                    fields, ending = self._end(job)
                    for at, call in enumerate(fields.get("tool_calls", ())):
                        call["index"] = at
                    yield self._chunk(job, fields, None, ending)
                event = await anext(rest, None)
        except ClientDisconnect:
            return
        except ApiError as error:  # the status was sent long ago
            yield _event(error.content)
            return
        if self._body.stream_options.get("include_usage"):
            yield _event({**self._head, "choices": [], "usage": self._usage(jobs)})
        yield "data: [DONE]\n\n"

    def _chunk(self, job: AnswerJob, fields: Json, logprobs: Json | None, ending: Json) -> str:
        choice = {"index": job.index, "delta": fields, "logprobs": logprobs, **ending}
        facts = {"rag_middle": ending["rag_middle"]} if "rag_middle" in ending else {}
        return _event({**self._head, "choices": [choice], **facts})

    def _end(self, job: AnswerJob) -> tuple[Json, Json]:
        """What a message has beside its text, and what its choice has."""
        result = _result(job)
        dropped = {document.id for document in result.dropped_documents}
        dropped -= {*result.document_ids}  # of a document that a method repeats, a copy
        read = [
            document for index, document in enumerate(job.documents) if str(index) not in dropped
        ]
        annotations, citations = openai_citations(result.text, read)
        fields: Json = {"annotations": annotations} if annotations else {}
        if citations:
            fields["citations"] = citations
        # What begins like a call of a tool and is none: text, so that nothing is lost.
        if unread := "".join(call.text for call in result.invalid_tool_calls):
            fields["content"] = unread
        for call in result.tool_calls:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            function = {"name": call.name, "arguments": arguments}
            entry = {"id": call.id, "type": "function", "function": function}
            fields.setdefault("tool_calls", []).append(entry)
        calls = result.tool_calls and result.finish_reason == "stop"
        return fields, {
            "finish_reason": "tool_calls" if calls else result.finish_reason,
            "stop_reason": result.stop,
            "rag_middle": {
                **job.response_fields,
                "applied": result.applied,
                "documents": result.documents,
                "document_order": [int(name or 0) for name in result.document_ids],
                "dropped_documents": [int(each.id or 0) for each in result.dropped_documents],
                "seed": result.seed,
            },
        }

    def _logprobs(self, tokens: Sequence[TokenLogProbability]) -> Json | None:
        return openai_logprobs(tokens, self._token_text) if self._body.logprobs else None

    def _usage(self, jobs: Sequence[AnswerJob]) -> dict[str, int]:
        """Token counts; the prompt counts once."""
        usages = [_result(job).usage for job in jobs]
        prompt_tokens = usages[0].prompt_tokens
        new_tokens = sum(usage.completion_tokens for usage in usages)
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": new_tokens}
        return {**counts, "total_tokens": sum(counts.values())}


def _result(job: AnswerJob) -> Generation:
    assert isinstance(job.result, Generation)
    return job.result


def _event(content: Json) -> str:
    return f"data: {json.dumps(content)}\n\n"
