"""A request from its fields to its answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import fit_to_window
from rag_middle.markers import marker_key
from rag_middle.registry import suggest
from rag_middle.serving.batching import BatchQueue, Job, Piece
from rag_middle.serving.errors import ApiError, api_error
from rag_middle.serving.prompts import RequestPrompt, chat_prompt, text_prompt
from rag_middle.serving.responses import Reply
from rag_middle.serving.schema import ChatRequest, CompletionRequest
from rag_middle.serving.settings import ServerSettings
from rag_middle.tokens import TokenizedPrompt

Body = ChatRequest | CompletionRequest
Emit = Callable[[Job | None, Piece], None]
_SAMPLING = (
    *("temperature", "top_p", "top_k", "typical_p"),
    *("repetition_penalty", "no_repeat_ngram_size"),
)
_BODY_SECONDS = 60
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Service:
    """Answers requests with a model, which may be used elsewhere too: requests take turns."""

    def __init__(self, model: RagMiddleModel, settings: ServerSettings) -> None:
        marker_key()  # refused now, and not with the first request that holds markers
        self._model = model
        self._settings = settings
        self.queue = BatchQueue(model, settings)

    async def answer(self, request: Request, kind: type[Body]) -> Response:
        """The response to a request, streamed where it asks for that.

        Raises:
            ApiError: it is refused, or its answer failed; pydantic's and the library's errors, too.
            ClientDisconnect: nobody waits any more.
        """
        body = kind.model_validate_json(await self._read(request))
        method = self._method_name(body)
        events: asyncio.Queue[tuple[Job | None, Piece]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(job: Job | None, piece: Piece) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (job, piece))

        jobs = await self.queue.submit(lambda: [*self._jobs(body, method, emit)])
        reply = Reply(body, method, self._model.token_text)
        pieces = _pieces(jobs, events, request)
        # What is refused after all has a status of its own, if nothing was sent yet.
        first = await anext(pieces)
        if body.stream:
            chunks, kind_of_text = reply.streamed(jobs, first, pieces), "text/event-stream"
            return StreamingResponse(chunks, media_type=kind_of_text, headers=_STREAM_HEADERS)
        async for _ in pieces:
            pass
        return JSONResponse(reply.whole(jobs))

    async def _read(self, request: Request) -> bytes:
        """The body of a request, whole and within limits."""
        most, closing = self._settings.max_body_bytes, {"Connection": "close"}
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        message = f"The body is longer than {most} bytes. Send fewer documents."
                        raise ApiError(413, message, headers=closing)
        except TimeoutError:
            message = f"The request did not arrive within {_BODY_SECONDS} seconds. Send it again."
            raise ApiError(408, message, headers=closing) from None
        return bytes(body)

    def _method_name(self, body: Body) -> str:
        settings = self._settings
        if body.model != settings.model_name:
            message = f"There is no model {body.model!r:.100} here, only {settings.model_name!r}."
            raise ApiError(404, message, param="model", code="model_not_found")
        name = settings.default_method if body.method is None else body.method
        if name not in settings.methods:
            raise ApiError(
                400,
                f"There is no method {name!r:.100} here.{suggest(name, settings.methods)} "
                f"Methods: {', '.join(settings.methods)}.",
                param="method",
                code="method_not_allowed",
            )
        return name

    def _jobs(self, body: Body, name: str, emit: Emit) -> Iterator[Job]:
        """What is to be generated: everything that can be refused without the model is."""
        method, most = self._settings.methods[name], self._settings.max_waiting
        answers = body.n * (1 if isinstance(body, ChatRequest) else len(body.prompt))
        if answers > most:
            message = f"The request asks for {answers} answers, and no more than {most} can wait."
            raise ApiError(400, f"{message} Send several requests.", param="n")
        seed = secrets.randbits(32) if body.seed is None else body.seed
        constraints = body.constraints()
        shape: dict[str, Any] = {
            "system": self._settings.defaults.system,
            "tools": constraints.get("tools"),
            "template": "auto" if isinstance(body, ChatRequest) else "raw",
        }
        index = 0
        for request in self._prompts(body):
            if len(request.documents) > self._settings.max_documents:
                message = f"There are more than {self._settings.max_documents} documents."
                raise ApiError(400, f"{message} Send fewer.", param="documents")
            # A method that asks another prompt does so before a chat template is put around it.
            asked = method if method.rewrites else "none"
            tokens = self._model.encode(request.prompt, method=asked, **shape)
            options = {**self._options(body, tokens), **constraints}
            # By its spelling: Python calls 1, 1.0 and True equal, and schemas in any order.
            group = f"{name} {options!r}"
            for number in range(body.n):
                yield Job(
                    index=index,
                    request=request,
                    prompt=request.prompt if method.rewrites else tokens,
                    method=method,
                    group=group,
                    options={**options, **shape} if method.rewrites else options,
                    seed=seed + number,
                    streams=body.stream,
                    emit=emit,
                )
                index += 1

    def _prompts(self, body: Body) -> Iterator[RequestPrompt]:
        trusted, documents = self._settings.trust_markers, body.documents
        if isinstance(body, ChatRequest):
            # Also where none may be called: what was called before is in the conversation.
            tools = bool(body.tools)
            yield chat_prompt(body.messages, documents, trusted=trusted, has_tools=tools)
        else:
            for text in body.prompt:
                yield text_prompt(text, documents, trusted=trusted)

    def _options(self, body: Body, tokens: TokenizedPrompt) -> dict[str, Any]:
        """Options of `batch`; raises `ContextOverflowError` where the prompt does not fit."""
        defaults, window = self._settings.defaults, self._model.context_window
        drops = defaults.on_overflow == "drop_documents"
        limit = body.max_tokens or defaults.max_new_tokens
        if body.max_tokens is None and window is not None:
            room = window - len(tokens) + drops * sum(tokens.layout.document_lengths)
            # Nobody asked for so many tokens. By halves, so that requests share batches.
            while limit > max(room, 1):
                limit //= 2
        # Refused here, and not in a batch with others.
        fit_to_window(tokens, max_new_tokens=limit, context_window=window, drop_documents=drops)
        sampling = {name: getattr(body, name) for name in _SAMPLING}
        sampling |= {name: getattr(defaults, name) for name in _SAMPLING if sampling[name] is None}
        return {
            **sampling,
            "top_k": max(sampling["top_k"], 0),  # -1: all, for vLLM
            "max_new_tokens": limit,
            "stop": tuple(body.stop),
            "logprobs": body.alternatives is not None,
            "top_logprobs": body.alternatives or 0,
            "eos_token_id": defaults.eos_token_id,
            "on_overflow": defaults.on_overflow,
            "on_missing_documents": "ignore",  # the answer says whether the method was applied
        }


async def _pieces(
    jobs: Sequence[Job], events: asyncio.Queue[tuple[Job | None, Piece]], request: Request
) -> AsyncIterator[tuple[Job, Piece]]:
    """Pieces of answers as they come.

    Leaving it, by an end, an error or the client, ends what still runs.

    Raises:
        ApiError: an answer failed.
        ClientDisconnect: nobody waits any more.
    """

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        events.put_nowait((None, None))

    watching = asyncio.create_task(watch())
    missing = len(jobs)
    try:
        while missing:
            job, piece = await events.get()
            if job is None:
                raise ClientDisconnect
            if isinstance(job.result, BaseException):
                raise api_error(job.result) from job.result
            missing -= piece is None
            yield job, piece
    finally:
        watching.cancel()
        for job in jobs:
            job.cancel.set()
