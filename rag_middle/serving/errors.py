"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rag_middle.errors import (
    ContextOverflowError,
    MarkerError,
    PromptError,
    RagMiddleError,
    UnsupportedGenerationError,
)
from rag_middle.wording import Argument, quoted

__all__ = ["HANDLERS", "ApiError", "AsciiJson", "api_error", "dumped"]

#: Arguments of the library that a request has under another name, and those that it has not.
_FIELDS = {"max_new_tokens": "max_tokens"}
_OF_THE_SERVER = {"on_overflow", "template", "system", "allow_control_tokens"}

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def dumped(value: Any) -> str:
    """JSON in ASCII: texts may hold what no encoding takes."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class AsciiJson(JSONResponse):
    """A response of `dumped` JSON."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return dumped(content).encode()


class ApiError(HTTPException):
    """A refusal, as a client reads it.

    Attributes:
        message: what is wrong, and what to do.
        param: the field of the request that it is about.
        code: for programs.
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
        self.message, self.param, self.code = message, param, code

    @property
    def content(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status_code, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> AsciiJson:
        """The whole response."""
        return AsciiJson(self.content, self.status_code, self.headers)


def api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; of a mistake in the server, only that there is one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):  # Starlette's own: no such route, or not by this verb
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    if not isinstance(error, RagMiddleError):
        return ApiError(500, "The server failed. Its log says how.", code="internal_error")
    is_of_request = isinstance(error, PromptError | MarkerError | UnsupportedGenerationError)
    overflows = isinstance(error, ContextOverflowError)
    return ApiError(
        400 if is_of_request else 500,
        error.worded(_spelling),
        param=None if error.parameter is None else _FIELDS.get(error.parameter, error.parameter),
        code="context_length_exceeded" if overflows else None,
    )


def _spelling(argument: Argument) -> str:
    if argument == Argument("template", "raw"):
        return "POST /v1/completions"
    name = _FIELDS.get(argument.name, argument.name)
    if name in _OF_THE_SERVER:
        value = f" {argument.value}" if argument.has_value else ""
        return f"--{name.replace('_', '-')}{value} when the server starts"
    return f"{name}={quoted(argument.value)}" if argument.has_value else name


async def _refused(_: Request, error: Exception) -> AsciiJson:
    return api_error(error).response()


async def _invalid(_: Request, error: Exception) -> AsciiJson:
    """The first thing that is wrong with a body; never what it holds."""
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    # Where a text or a list is taken, the first says that a list is no text: the next one is meant.
    problem = problems[len(problems) > 1 and problems[0]["type"] == "string_type"]
    if problem["type"] == "json_invalid":
        return ApiError(400, f"The body is no JSON: {problem['ctx']['error']}.").response()
    # Besides names and indices, locations hold the tags of unions, which no client knows.
    tags = ("Block", "Document", "]", "str")
    where = [part for part in problem["loc"][1:] if not str(part).endswith(tags)]
    path = ".".join(map(str, where))
    message = problem["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None).response()


HANDLERS: dict[int | type[Exception], Any] = {
    HTTPException: _refused,
    RequestValidationError: _invalid,
    RagMiddleError: _refused,
    Exception: _refused,
}
"""For FastAPI."""
