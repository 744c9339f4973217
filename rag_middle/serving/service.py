"""A request from its fields to its answer."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rag_middle.conventions.documents import top_documents
from rag_middle.documents import ContextPrompt
from rag_middle.errors import ContextOverflowError
from rag_middle.generation import Generation, Prompt, RagMiddleModel
from rag_middle.generation.effect import lacking_documents
from rag_middle.generation.prompts import LockedTokenizer, awaits_retrieval, fit_to_window
from rag_middle.markers import MARKER_KEY_VARIABLE, marker_key
from rag_middle.registry import suggest
from rag_middle.serving.batching import BatchQueue, Event, Job, Piece
from rag_middle.serving.errors import ApiError, AsciiJson, api_error, dumped
from rag_middle.serving.metrics import Metrics
from rag_middle.serving.prompts import RequestPrompt, chat_prompt, text_prompt
from rag_middle.serving.responses import ChatReply, Choice, Reply, TextReply
from rag_middle.serving.schema import ChatRequest, CompletionRequest, SamplingRequest
from rag_middle.serving.settings import ServerSettings
from rag_middle.tokens import TokenizedPrompt
from rag_middle.wording import quoted

_log = logging.getLogger(__name__)

_CLIENT_LEFT = 499  # as nginx notes it; nobody reads it
# A prompt with more characters cannot fit: no text has so many per token, and templates leave out
# little. Reading a long text takes the tokenizer from all other requests.
_CHARACTERS_PER_TOKEN, _SPARE_CHARACTERS = 16, 1 << 16
# Documents that may be dropped are read nonetheless, which takes a second or so.
_DROPPABLE_CHARACTERS = 1 << 20
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Service:
    """Answers requests with a model.

    Args:
        model: it may be used elsewhere too; requests take turns.
        settings: what requests may ask for.
    """

    def __init__(self, model: RagMiddleModel, settings: ServerSettings) -> None:
        marker_key()  # refused now, and not with the first request that holds markers
        self._model = model
        self._settings = settings
        self._tokenizer = LockedTokenizer(model.tokenizer)
        self.metrics = Metrics()
        self._announced: set[str] = set()  # methods without documents
        self.queue = BatchQueue(
            model,
            max_batch_size=settings.max_batch_size,
            max_waiting=settings.max_waiting,
            batch_wait=settings.batch_wait,
            metrics=self.metrics,
        )

    async def answer(self, body: ChatRequest | CompletionRequest, request: Request) -> Response:
        """The response to a request, streamed where it asks for that.

        Raises:
            ApiError: it is refused, or its answer failed.
        """
        endpoint = "chat" if isinstance(body, ChatRequest) else "text"
        method, status = "", 500
        try:
            method = self._method_name(body)
            with self.metrics.seconds.time():
                response = await self._admitted(body, method, request)
            status = response.status_code
            return response
        except Exception as error:
            refusal = api_error(error)
            status = refusal.status_code
            if status == 500:
                raise
            raise refusal from error
        finally:
            self.metrics.requests.labels(endpoint, method, str(status)).inc()

    def _method_name(self, body: SamplingRequest) -> str:
        settings = self._settings
        if body.model != settings.model_name:
            raise ApiError(
                404,
                f"There is no model {quoted(body.model)} here, only {settings.model_name!r}.",
                param="model",
                code="model_not_found",
            )
        name = settings.default_method if body.method is None else body.method
        if name not in settings.methods:
            raise ApiError(
                400,
                f"There is no method {quoted(name)} here.{suggest(name, settings.methods)} "
                f"Methods: {', '.join(settings.methods)}.",
                param="method",
                code="method_not_allowed",
            )
        return name

    async def _admitted(
        self, body: ChatRequest | CompletionRequest, method: str, request: Request
    ) -> Response:
        """Put a request into the queue, and wait for its answer, or for the beginning of it."""
        self._check_size(body)
        events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()
        with self.queue.coming():
            choices, jobs = await run_in_threadpool(self._jobs, body, method, _emitter(events))
            self.queue.submit(jobs)
        reply = (ChatReply if isinstance(body, ChatRequest) else TextReply)(
            model=self._settings.model_name,
            method=method,
            token_text=self._tokenizer.token_text,
            with_log_probabilities=body.alternatives is not None,
            with_citations=body.citation_options.mode.upper() not in ("OFF", "DISABLED"),
        )
        run = self._events(choices, jobs, events, request)
        try:
            if not body.stream:
                async for choice, piece in run:
                    choice.tokens += piece.tokens if piece else ()
                return AsciiJson(reply.whole(choices))
            # What is refused after all has a status of its own, if nothing was sent yet.
            first = await anext(run)
        except _ClientLeftError:
            return Response(status_code=_CLIENT_LEFT)
        with_usage = body.stream_options.include_usage
        return StreamingResponse(
            _streamed(reply, choices, first, run, with_usage=with_usage),
            media_type="text/event-stream",
            headers=_STREAM_HEADERS,
        )

    def _check_size(self, body: ChatRequest | CompletionRequest) -> None:
        """Refuse what is too much before anything is made of it, a token for instance."""
        settings = self._settings
        texts = body.prompt if isinstance(body, CompletionRequest) else ""
        prompts = 1 if isinstance(texts, str) else len(texts)
        if prompts * body.n > settings.max_choices:
            raise ApiError(
                400,
                f"The request asks for {prompts * body.n} answers, and {settings.max_choices} are "
                "the most here. Send several requests.",
                param="n",
            )
        if len(body.documents) > settings.max_documents:
            raise _too_many_documents(len(body.documents), settings.max_documents)

    def _check_length(self, prompt: RequestPrompt, tools: object) -> None:
        """Refuse a prompt that cannot fit before it is read: others wait for the tokenizer."""
        window = self._model.context_window
        if window is None:
            return
        most = window * _CHARACTERS_PER_TOKEN + _SPARE_CHARACTERS
        length, of_documents = _characters(prompt.prompt)
        drops = self._settings.defaults.on_overflow == "drop_documents"
        length += _written(tools) if tools else 0
        length += max(of_documents - _DROPPABLE_CHARACTERS, 0) if drops else of_documents
        if length > most:
            raise ApiError(
                400,
                f"A prompt of {length:,} characters cannot fit into the context window of "
                f"{window:,} tokens. Send less.",
                code="context_length_exceeded",
            )

    def _jobs(
        self,
        body: ChatRequest | CompletionRequest,
        method: str,
        emit: Callable[[int, Event], None],
    ) -> tuple[list[Choice], list[Job]]:
        """What is to be generated: everything that can be refused without the model is."""
        settings = self._settings
        choices: list[Choice] = []
        jobs: list[Job] = []
        seed = secrets.randbits(32) if body.seed is None else body.seed
        constraints = body.constraints()
        for prompt in _prompts(body, trusted=settings.trust_markers):
            if len(prompt.documents) > settings.max_documents:
                raise _too_many_documents(len(prompt.documents), settings.max_documents)
            if prompt.marked_elsewhere and not prompt.documents:
                raise ApiError(
                    400,
                    "The text seems to hold documents, marked with another key than this server's: "
                    "they would reach the model as one text full of markers. Set the same "
                    f"{MARKER_KEY_VARIABLE} for client and server, or send the documents as "
                    "`documents`.",
                    code="unreadable_markers",
                )
            tools = constraints.get("tools")
            self._check_length(prompt, tools)
            shape: dict[str, Any] = {"system": settings.defaults.system, "tools": tools}
            if isinstance(body, CompletionRequest):
                shape["template"] = "raw"
            # A method that asks another prompt does so before a chat template is put around it.
            rewrites = settings.methods[method].rewrites
            asked = settings.methods[method] if rewrites else "none"
            tokens = self._model.encode(prompt.prompt, method=asked, **shape)
            if not (shape["tools"] and awaits_retrieval(prompt.prompt)):
                self._note_missing(method, tokens)
            options = {**self._options(body, tokens), **constraints}
            if rewrites:
                options |= shape
            for index in range(body.n):
                at = len(choices)
                choices.append(Choice(index=at, prompt=prompt))
                jobs.append(
                    Job(
                        prompt=prompt.prompt if rewrites else tokens,
                        method=(method, settings.methods[method]),
                        options=options,
                        seed=seed + index,
                        alternatives=body.alternatives,
                        streams=body.stream,
                        emit=lambda event, at=at: emit(at, event),  # type: ignore[misc]
                    )
                )
        return choices, jobs

    def _note_missing(self, method: str, tokens: TokenizedPrompt) -> None:
        """Count a prompt whose documents are missing; the log says so once per method."""
        if not lacking_documents(self._settings.methods[method], tokens.layout):
            return
        self.metrics.missing_documents.labels(method).inc()
        if method not in self._announced:
            self._announced.add(method)
            _log.warning(
                "A prompt without documents was sent under %s, which needs some: it is answered as "
                "by the unmodified model. Clients send them as `documents` of the request, as "
                "document blocks or as marked text (the same %s on both sides). Further ones are "
                "counted in rag_middle_missing_documents_total of /metrics.",
                method,
                MARKER_KEY_VARIABLE,
            )

    def _options(self, body: SamplingRequest, tokens: TokenizedPrompt) -> dict[str, Any]:
        """Options of `RagMiddleModel.batch`: the request's, and the server's where it has none.

        Raises:
            ContextOverflowError: the prompt does not fit.
        """
        defaults, window = self._settings.defaults, self._model.context_window
        drops = defaults.on_overflow == "drop_documents"
        limit = body.max_new_tokens or defaults.max_new_tokens
        while True:
            try:
                fit_to_window(
                    tokens, max_new_tokens=limit, context_window=window, drop_documents=drops
                )
                break
            except ContextOverflowError:
                # Nobody asked for so many tokens. By halves, so that requests share batches.
                if body.max_new_tokens is not None or limit == 1:
                    raise
                limit //= 2
        asked = {
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": None if body.top_k is None else max(body.top_k, 0),  # -1: all, for vLLM
            "typical_p": body.typical_p,
            "repetition_penalty": body.repetition_penalty,
            "no_repeat_ngram_size": body.no_repeat_ngram_size,
        }
        return {
            "max_new_tokens": limit,
            "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
            "eos_token_id": defaults.eos_token_id,
            "on_overflow": defaults.on_overflow,
            "on_missing_documents": "ignore",  # the answer says whether the method was applied
            **{
                name: getattr(defaults, name) if value is None else value
                for name, value in asked.items()
            },
        }

    async def _events(
        self,
        choices: Sequence[Choice],
        jobs: Sequence[Job],
        events: asyncio.Queue[tuple[int, Event | None]],
        request: Request,
    ) -> AsyncIterator[tuple[Choice, Piece | None]]:
        """Pieces of answers as they come, None where one has ended.

        Leaving it, by an end, an error or the client, ends what still runs.

        Raises:
            ApiError: an answer failed.
            _ClientLeftError: nobody waits any more.
        """

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            for job in jobs:
                job.cancel.set()
            events.put_nowait((0, None))

        watching = asyncio.create_task(watch())
        missing = len(jobs)
        try:
            while missing:
                index, event = await events.get()
                if event is None:
                    self.metrics.cancelled.inc(missing)
                    raise _ClientLeftError
                if isinstance(event, BaseException):
                    raise api_error(event) from event
                choice = choices[index]
                if isinstance(event, Piece):
                    yield choice, event
                    continue
                if event.finish_reason == "cancelled":
                    raise ApiError(503, "The server is shutting down.", code="shutting_down")
                missing -= 1
                choice.result = event
                self._note(event)
                yield choice, None
        finally:
            watching.cancel()
            for job in jobs:
                job.cancel.set()

    def _note(self, result: Generation) -> None:
        self.metrics.prompt_tokens.inc(result.usage.prompt_tokens)
        self.metrics.prompt_length.observe(result.usage.prompt_tokens)
        self.metrics.new_tokens.inc(result.usage.completion_tokens)
        self.metrics.first_token.observe(result.timings.prefill)


def _too_many_documents(count: int, most: int) -> ApiError:
    return ApiError(
        400,
        f"The prompt has {count} documents, and {most} are the most here. Send fewer.",
        param="documents",
    )


def _characters(prompt: Prompt) -> tuple[int, int]:
    """Characters of a prompt's own texts, and of its documents."""
    if isinstance(prompt, ContextPrompt):
        own = len(prompt.prefix) + len(prompt.suffix)
        return own, sum(len(document.render()) for document in prompt.documents)
    if isinstance(prompt, str):
        return len(prompt), 0
    assert not isinstance(prompt, TokenizedPrompt)
    own = sum(_written({**message, "content": ""}) for message in prompt)
    each = [_characters(message["content"]) for message in prompt]
    return own + sum(text for text, _ in each), sum(of_documents for _, of_documents in each)


def _written(fields: object) -> int:
    """Characters of plain data as chat templates write it, about."""
    return len(json.dumps(fields, ensure_ascii=False))


def _prompts(body: ChatRequest | CompletionRequest, *, trusted: bool) -> list[RequestPrompt]:
    documents = top_documents(body.documents)
    if isinstance(body, ChatRequest):
        # Also where none may be called: what was called before is in the conversation.
        has_tools = bool(body.tools)
        return [chat_prompt(body.messages, documents, trusted=trusted, has_tools=has_tools)]
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return [text_prompt(text, documents, trusted=trusted) for text in texts]


class _ClientLeftError(Exception):
    """Nobody waits for the answer."""


def _emitter(events: asyncio.Queue[tuple[int, Event | None]]) -> Callable[[int, Event], None]:
    """Puts events of other threads into a queue of this thread's loop."""
    loop = asyncio.get_running_loop()

    def put(index: int, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server is down
            loop.call_soon_threadsafe(events.put_nowait, (index, event))

    return put


async def _streamed(
    reply: Reply,
    choices: Sequence[Choice],
    first: tuple[Choice, Piece | None],
    run: AsyncIterator[tuple[Choice, Piece | None]],
    *,
    with_usage: bool,
) -> AsyncIterator[str]:
    """Server-sent events."""

    async def all_events() -> AsyncIterator[tuple[Choice, Piece | None]]:
        yield first
        async for event in run:
            yield event

    for choice in choices:
        if opening := reply.opening(choice):
            yield _event(opening)
    try:
        async for choice, piece in all_events():
            if piece is None:
                yield _event(reply.closing(choice))
            else:
                yield _event(reply.chunk(choice, piece.text, piece.tokens))
    except _ClientLeftError:
        return
    except ApiError as error:  # the status was sent long ago
        yield _event(error.content)
        return
    if with_usage:
        yield _event(reply.usage_chunk(choices))
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {dumped(content)}\n\n"
