"""The application: its routes, and its life."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from rag_middle import __version__
from rag_middle.generation import RagMiddleModel
from rag_middle.serving.errors import HANDLERS, ApiError
from rag_middle.serving.schema import ChatRequest, CompletionRequest
from rag_middle.serving.service import Service
from rag_middle.serving.settings import API_KEY_VARIABLE, ServerSettings

Key = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def create_app(model: RagMiddleModel, settings: ServerSettings) -> FastAPI:
    """An ASGI application that answers with `model`.

    Requests are served between its start-up and its shutdown, which ends those that run.
    """
    service = Service(model, settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        yield
        await service.queue.close()

    async def check_key(sent: Key) -> None:
        key, said = settings.api_key or "", sent.credentials if sent else ""
        # As bytes: what compares in constant time takes no other characters than ASCII's.
        if key and not hmac.compare_digest(said.encode(), key.encode()):
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
    app.state.queue = service.queue
    api = APIRouter(prefix="/v1", dependencies=[Depends(check_key)], redirect_slashes=False)
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

    @api.get("/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [described]})

    @api.get("/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name != settings.model_name:
            raise ApiError(404, f"There is no model {name!r} here.", code="model_not_found")
        return JSONResponse(described)

    @api.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await service.answer(request, ChatRequest)

    @api.post("/completions")
    async def completions(request: Request) -> Response:
        return await service.answer(request, CompletionRequest)

    @app.get("/health")
    async def health() -> Response:
        """Whether the process can still answer; restart it if not."""
        serving = service.queue.is_serving
        status = "ok" if serving else "unavailable"
        return JSONResponse({"status": status}, 200 if serving else 503)

    app.include_router(api)
    return app
