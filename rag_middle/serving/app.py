"""The application: its routes, and a request from its body to its answer."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from rag_middle import __version__
from rag_middle.generation import RagMiddleModel
from rag_middle.markers import marker_key
from rag_middle.serving.batching import AnswerJob, BatchQueue, Event, Piece
from rag_middle.serving.errors import HANDLERS, ApiError, api_error
from rag_middle.serving.jobs import make_jobs
from rag_middle.serving.responses import Reply
from rag_middle.serving.schema import ChatRequest
from rag_middle.serving.settings import API_KEY_VARIABLE, ServerSettings

_BODY_SECONDS = 60
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def create_app(model: RagMiddleModel, settings: ServerSettings) -> FastAPI:
    """An ASGI application that answers with `model`.

    Requests are served between its start-up and its shutdown, which ends those that run. The model
    may be used elsewhere too: requests on it take turns.
    """
    marker_key()  # refused now, and not with the first request that holds markers
    queue = BatchQueue(model, settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        await run_in_threadpool(queue.close)

    async def check_key(request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").strip().partition(" ")
        # As bytes: what compares in constant time takes no other characters than ASCII's.
        is_right = hmac.compare_digest(key.strip().encode(), (settings.api_key or "").encode())
        if settings.api_key and not (is_right and scheme.lower() == "bearer"):
            raise ApiError(
                401,
                "The API key is missing or wrong. Send 'Authorization: Bearer KEY' with the key "
                f"that the server got in {API_KEY_VARIABLE}.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    app = FastAPI(
        title="rag-middle",
        version=__version__,
        lifespan=life,
        exception_handlers=HANDLERS,
        openapi_url=None,
        redirect_slashes=False,  # to the host that a client names, without the proxy's TLS
    )
    app.state.queue = queue
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
    )
    api = APIRouter(prefix="/v1", dependencies=[Depends(check_key)], redirect_slashes=False)
    facts = {"methods": [*settings.methods], "default_method": settings.default_method}
    described: dict[str, Any] = {
        "id": settings.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "rag-middle",
        "max_model_len": model.context_window,
        "rag_middle": facts,
    }

    @api.get("/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [described]})

    @api.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = ChatRequest.model_validate_json(await _read(request, settings.max_body_bytes))
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(job: AnswerJob, piece: Piece) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (job, piece))

        prepare = partial(make_jobs, model, settings, body, emit)
        jobs = await queue.submit(prepare, request.is_disconnected)
        reply = Reply(body, model.token_text)
        pieces = _pieces(jobs, events, request)
        # What is refused after all has a status of its own, if nothing was sent yet.
        first = await anext(pieces)
        if body.stream:
            chunks, kind_of_text = reply.streamed(jobs, first, pieces), "text/event-stream"
            return StreamingResponse(chunks, media_type=kind_of_text, headers=_STREAM_HEADERS)
        async for _ in pieces:
            pass
        # In a thread: of many log-probabilities, both take seconds.
        return await run_in_threadpool(lambda: JSONResponse(reply.whole(jobs)))

    @app.get("/health")
    async def health() -> Response:
        """Whether the process can still answer; restart it if not."""
        status = "ok" if queue.is_serving else "unavailable"
        return JSONResponse({"status": status}, 200 if queue.is_serving else 503)

    app.include_router(api)
    return app


async def _read(request: Request, most: int) -> bytes:
    """The body of a request, whole and within limits."""
    closing, body = {"Connection": "close"}, bytearray()
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


async def _pieces(
    jobs: Sequence[AnswerJob], events: asyncio.Queue[Event | None], request: Request
) -> AsyncIterator[Event]:
    """Pieces of answers as they come.

    Leaving it, by an end, an error or the client, ends what still runs.

    Raises:
        ApiError: an answer failed.
        ClientDisconnect: nobody waits any more.
    """

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        events.put_nowait(None)

    watching = asyncio.create_task(watch())
    missing = len(jobs)
    try:
        while missing:
            event = await events.get()
            if event is None:
                raise ClientDisconnect
            job, piece = event
            if isinstance(job.result, BaseException):
                raise api_error(job.result) from job.result
            missing -= piece is None
            yield job, piece
    finally:
        watching.cancel()
        for job in jobs:
            job.cancel.set()
