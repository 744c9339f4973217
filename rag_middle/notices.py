"""Warnings that point at the caller's own line."""

from __future__ import annotations

import sys
import warnings


class MissingDocumentsWarning(UserWarning):
    """The prompt has no documents, and a method or a question needs some."""


class NumberedDocumentsWarning(UserWarning):
    """Documents say their rank, under a method that keeps their order from mattering."""


class BackendFallbackWarning(UserWarning):
    """An attention backend is not installed, or Triton kernels fail their check; others run."""


class ChatTemplateWarning(UserWarning):
    """A prompt is not exactly what its chat template writes, so that messages stay inert."""


class EndpointWarning(UserWarning):
    """A server reads another prompt than the one that was sent, or may do so."""


class ProfileWarning(UserWarning):
    """A profile was made for another version of the model, or did not help there."""


class AnswerFormatWarning(UserWarning):
    """An answer does not hold under the JSON schema that it was asked for."""


class UnreadMarkersWarning(UserWarning):
    """A text has document markers that mark nothing: they are read as text."""


def warn_caller(warning: Warning) -> None:
    """Warn at the nearest line on the stack that is outside of this package and its integrations.

    Python's default filter shows the same words once for each line.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and "rag_middle" in str(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
