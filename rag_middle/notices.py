"""Warnings that point at the caller's own line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from rag_middle.wording import WordedException

__all__ = [
    "BackendFallbackWarning",
    "ChatTemplateWarning",
    "MissingDocumentsWarning",
    "NumberedDocumentsWarning",
    "ProfileWarning",
    "UnreadMarkersWarning",
    "pass_over",
    "warn_caller",
]

_passed_over = {__name__.partition(".")[0]}


class MissingDocumentsWarning(WordedException, UserWarning):
    """The prompt has no documents, and a method or a question needs some."""


class NumberedDocumentsWarning(WordedException, UserWarning):
    """Documents say their rank, under a method that keeps their order from mattering."""


class BackendFallbackWarning(WordedException, UserWarning):
    """The attention backend asked for is not installed; another one runs."""


class ChatTemplateWarning(WordedException, UserWarning):
    """A prompt is not exactly what its chat template writes, so that messages stay inert."""


class ProfileWarning(WordedException, UserWarning):
    """A profile was made for another version of the model, or did not help there."""


class UnreadMarkersWarning(WordedException, UserWarning):
    """A text has document markers that mark nothing: they are read as text."""


def pass_over(*packages: str) -> None:
    """Have warnings pass over the frames of packages that call this one for somebody else."""
    _passed_over.update(packages)


def warn_caller(warning: Warning) -> None:
    """Warn at the line that called into this package, or into one that is passed over."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame) in _passed_over:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
