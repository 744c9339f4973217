"""Options of a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_middle.errors import RetrievalConfigError
from rag_middle.options import GenerationKwargs, checked_options
from rag_middle.wording import Argument

__all__ = ["check_top_k", "with_defaults"]


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
