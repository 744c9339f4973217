"""Warnings that point at the caller's own line."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

_passed_over = {__name__.partition(".")[0]}


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


def pass_over(*packages: str) -> None:
    """Have warnings pass over the frames of packages that call this one for somebody else."""
    _passed_over.update(packages)


@dataclass(frozen=True, slots=True)
class Caller:
    """A line that calls into this package.

    Attributes:
        filename: of its file.
        line: 1-based.
        module: the name of its module.
        registry: where Python's filters remember what they have shown there.
        said: kinds of warnings, and lines, that were warned of already; one that would be said
            every time is said once. For calls that a framework makes over and over: whoever makes
            the caller decides how long that counts. None: every time.
    """

    filename: str
    line: int
    module: str
    registry: dict[Any, Any] = field(repr=False)
    said: set[Hashable] | None = field(default=None, repr=False)


_caller: ContextVar[Caller | None] = ContextVar("rag_middle_caller", default=None)


def caller(*, said: set[Hashable] | None = None) -> Caller:
    """The nearest line on this thread's stack outside of this package and those passed over.

    In a thread whose stack has none, it is the line that `called_from` named, or that of the main
    thread.
    """
    frame, beginning = _outermost(sys._getframe()), _caller.get()
    if _package(frame) in _passed_over:
        if beginning is not None:
            return replace(beginning, said=said)
        # A framework's thread: the main thread waits for it, most likely.
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frame = frame if main is None else _outermost(main)
    return Caller(
        filename=frame.f_code.co_filename,
        line=frame.f_lineno,
        module=str(frame.f_globals.get("__name__")),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
        said=said,
    )


@contextmanager
def called_from(place: Caller) -> Iterator[None]:
    """Warn at `place` in the block where this thread's stack does not lead to a caller.

    Threads that get a copy of the context know it too.
    """
    token = _caller.set(place)
    try:
        yield
    finally:
        _caller.reset(token)


def warn_caller(warning: Warning, *, every_time: bool = False) -> None:
    """Warn at the line that called into this package, or into one that is passed over.

    Args:
        warning: what to say.
        every_time: also where Python's default filter has shown the same at this line. Filters that
            ignore it or make it an error are heeded.
    """
    place, beginning = caller(), _caller.get()
    said = beginning.said if beginning is not None and every_time else None
    kind = (type(warning), place.filename, place.line)
    if said is not None and kind in said:
        return
    warnings.warn_explicit(
        warning,
        category=type(warning),
        filename=place.filename,
        lineno=place.line,
        module=place.module,
        registry={} if every_time else place.registry,
    )
    if said is not None:
        said.add(kind)


def _outermost(frame: FrameType) -> FrameType:
    """The nearest frame that is not passed over, or the last one."""
    while frame.f_back is not None and _package(frame) in _passed_over:
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
