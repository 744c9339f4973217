"""Warnings, pointing at the line that called into LangChain."""

from __future__ import annotations

import sys
import warnings

__all__ = ["IgnoredArgumentWarning", "warn_user"]

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


def _package(module_globals: dict[str, object]) -> str:
    return str(module_globals.get("__name__", "")).partition(".")[0]
