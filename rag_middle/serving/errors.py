"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rag_middle.errors import (
    ContextOverflowError,
    PromptError,
    RagMiddleError,
    UnsupportedGenerationError,
)
from rag_middle.serving.schema import ChatRequest

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """A refusal, as a client reads it.

    Attributes:
        content: body of the response: what is wrong and what to do, the field of the request that
            it is about, and a code for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; of a mistake in the server, only that there is one."""
    match error:
        case ApiError():
            return error
        case HTTPException():  # Starlette's own: no such route, or not by this verb
            paths = "POST /v1/chat/completions, GET /v1/models and GET /health"
            message = f"{error.detail}: there are {paths}."
            return ApiError(error.status_code, message, headers=error.headers)
        case ClientDisconnect():
            return ApiError(499, "Nobody reads this.")  # the status is that of nginx' log
        case ValidationError():
            return _of_body(error)
        case RagMiddleError():
            message = str(error).replace("max_new_tokens", "max_tokens")
            field = re.split(r"\W", message, maxsplit=1)[0]  # most begin with the option's name
            is_of_request = isinstance(error, PromptError | UnsupportedGenerationError)
            return ApiError(
                400 if is_of_request else 500,
                message,
                param=field if field in ChatRequest.model_fields else None,
                code="context_length_exceeded" if isinstance(error, ContextOverflowError) else None,
            )
    return ApiError(500, "The server failed. Its log says how.", code="internal_error")


def _of_body(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body; never what it holds."""
    problems = error.errors(include_url=False, include_input=False)
    # Where a text or a list is taken, the first says that a list is no text: the next one is meant.
    problem = problems[len(problems) > 1 and problems[0]["type"] == "string_type"]
    # Besides names and indices, locations hold the tags of unions, which no client knows.
    tags = ("Block", "Document", "]", "str")
    path = ".".join(str(part)[:100] for part in problem["loc"] if not str(part).endswith(tags))
    message = problem["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None)


async def _refused(_: Request, error: Exception) -> Response:
    refusal = api_error(error)
    return JSONResponse(refusal.content, refusal.status_code, refusal.headers)


#: For FastAPI.
HANDLERS: dict[int | type[Exception], Any] = dict.fromkeys(
    (HTTPException, ValidationError, RagMiddleError, ClientDisconnect, Exception), _refused
)
