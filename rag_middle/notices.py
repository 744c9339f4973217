"""Warnings that point at the caller's own line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from rag_middle.wording import WordedException

__all__ = [
    "BackendFallbackWarning",
    "MissingDocumentsWarning",
    "ProfileWarning",
    "UnreadMarkersWarning",
    "warn_caller",
]

_PACKAGE = str(Path(__file__).parent)


class MissingDocumentsWarning(WordedException, UserWarning):
    """The prompt has no documents, and a method or a question needs some."""


class BackendFallbackWarning(WordedException, UserWarning):
    """The attention backend asked for is not installed; another one runs."""


class ProfileWarning(WordedException, UserWarning):
    """A profile was made for another version of the model, or did not help there."""


class UnreadMarkersWarning(WordedException, UserWarning):
    """A text has document markers that mark nothing: they are read as text."""


def warn_caller(warning: Warning) -> None:
    """Warn at the line that called into this package."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
