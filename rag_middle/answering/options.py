"""Options of a question."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rag_middle.errors import RetrievalConfigError
from rag_middle.generation.options import (
    GenerationKwargs,
    PromptKwargs,
    checked_options,
)
from rag_middle.wording import Argument

__all__ = ["AskKwargs", "check_top_k", "with_defaults"]


class AskKwargs(PromptKwargs, total=False):
    """Fields of `GenerationOptions` that a question takes: all but ``top_k``, which counts
    documents here.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    repetition_penalty: float
    num_beams: int
    seed: int | Sequence[int] | None
    stop: str | Sequence[str]
    cancel: threading.Event | None


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a question, checked; documents that do not fit are left out by default.

    Raises:
        UnsupportedGenerationError: an option that does not exist or makes no sense.
    """
    chosen = {"on_overflow": "drop_documents", **options}
    checked_options(chosen, allowed=GenerationKwargs)
    return chosen


def check_top_k(top_k: object) -> None:
    """Raise `RetrievalConfigError` unless `top_k` is a number of documents."""
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise RetrievalConfigError(
            Argument("top_k"), f" must be a whole number of documents, at least 1, got {top_k!r}."
        )
