"""Warnings, pointing at the line that called into LangChain."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from rag_middle import PromptError

__all__ = ["IgnoredArgumentWarning", "check_documents", "warn_user"]

_FRAMEWORK = frozenset(
    "asyncio concurrent contextlib langchain langchain_classic langchain_core "
    "langchain_rag_middle langgraph pydantic threading".split()
)


class IgnoredArgumentWarning(UserWarning):
    """An argument was given that this model does not know or cannot heed."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's own code, where it is on this thread's stack."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in _FRAMEWORK:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def check_documents(found: bool, options: dict[str, Any]) -> None:
    """Speak up where the method needs documents and the prompt has none.

    Takes the policy out of the options, so that this is said once and in LangChain's terms.

    Args:
        found: whether the prompt has documents.
        options: of `RagMiddleModel.generate`, with the method as an object.

    Raises:
        PromptError: there are none, and the policy is ``"error"``.

    Warns:
        MissingDocumentsWarning: there are none, and the policy is ``"warn"``.
    """
    from rag_middle.generation import MissingDocumentsWarning

    policy, options["on_missing_documents"] = options["on_missing_documents"], "ignore"
    needy = [p.name for p in options["method"].parts if p.needs_documents and not p.is_neutral]
    if found or policy == "ignore" or not needy:
        return
    message = (
        f"{' and '.join(needy)} needs documents, and this prompt has none that it can tell: "
        "nothing is changed. Pass document_prompt=DocumentPrompt() where the chain takes one, "
        "or format_docs, which mark documents; on_missing_documents='ignore' says that this "
        "is meant."
    )
    if policy == "error":
        raise PromptError(message)
    warn_user(message, MissingDocumentsWarning)


def _package(module_globals: dict[str, object]) -> str:
    return str(module_globals.get("__name__", "")).partition(".")[0]
