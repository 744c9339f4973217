"""Errors of a request, in a shape that LlamaIndex lets through.

::

    rag_middle.RagMiddleError
    └── RequestError                a request was refused; its cause is the error of rag_middle
        └── ContextWindowError      the prompt and the answer exceed the context window

rag_middle refuses requests with subclasses of `ValueError`. LlamaIndex's refine and compact modes
catch every `ValueError` of a call and answer "Empty Response" instead, so these here are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rag_middle import ContextOverflowError, RagMiddleError


class RequestError(RagMiddleError):
    """A request was refused. ``__cause__`` is the error that says so, with all its attributes."""


class ContextWindowError(RequestError):
    """The prompt and the tokens to generate exceed the model's context window.

    Attributes:
        prompt_tokens: tokens of the prompt, special tokens included.
        max_new_tokens: tokens asked for.
        context_window: tokens the model can hold.
    """

    def __init__(
        self, message: str, *, prompt_tokens: int, max_new_tokens: int, context_window: int
    ) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.context_window = context_window


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what LlamaIndex would swallow into a `RequestError`.

    Raises:
        ContextWindowError: for a `ContextOverflowError`.
        RequestError: for any other `ValueError` or `TypeError`.
    """
    try:
        yield
    except ContextOverflowError as error:
        raise ContextWindowError(
            str(error),
            prompt_tokens=error.prompt_tokens,
            max_new_tokens=error.max_new_tokens,
            context_window=error.context_window,
        ) from error
    except (ValueError, TypeError) as error:
        raise RequestError(str(error)) from error
