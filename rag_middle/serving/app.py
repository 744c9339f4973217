"""The application: its routes, and its life."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from rag_middle import __version__
from rag_middle.generation import RagMiddleModel
from rag_middle.serving.errors import HANDLERS, ApiError, AsciiJson
from rag_middle.serving.gate import Gate
from rag_middle.serving.schema import ChatRequest, CompletionRequest
from rag_middle.serving.service import Service
from rag_middle.serving.settings import ServerSettings

_LAST_BATCH_SECONDS = 30.0


def create_app(model: RagMiddleModel, settings: ServerSettings) -> FastAPI:
    """An ASGI application that answers with `model`.

    Requests are served between its start-up and its shutdown, which waits for those that run.
    """
    service = Service(model, settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        yield
        # Whoever is still waiting by now has had the time that the server gives for it.
        service.queue.cancel_all()
        await run_in_threadpool(service.queue.close, _LAST_BATCH_SECONDS)

    app = FastAPI(
        title="rag-middle",
        version=__version__,
        lifespan=life,
        exception_handlers=HANDLERS,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to the host that a client names, without the proxy's TLS
    )
    app.state.queue = service.queue
    app.add_middleware(
        Gate,
        api_key=settings.api_key,
        max_body_bytes=settings.max_body_bytes,
        client_timeout=settings.client_timeout,
    )
    described: dict[str, Any] = {
        "id": settings.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "rag-middle",
        "max_model_len": model.context_window,
        "rag_middle": {
            "methods": list(settings.methods),
            "default_method": settings.default_method,
        },
    }

    @app.get("/v1/models")
    async def models() -> Response:
        return AsciiJson({"object": "list", "data": [described]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name != settings.model_name:
            raise ApiError(404, f"There is no model {name!r} here.", code="model_not_found")
        return AsciiJson(described)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await service.answer(body, request)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await service.answer(body, request)

    @app.get("/health")
    async def health() -> Response:
        """Whether the process can still answer; restart it if not."""
        return _state(service.queue.is_serving)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether to send requests here now: not while the queue is full, or at the end."""
        return _state(service.queue.is_serving and service.queue.has_room)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.content_type)

    return app


def _state(good: bool) -> Response:
    return AsciiJson({"status": "ok" if good else "unavailable"}, 200 if good else 503)
