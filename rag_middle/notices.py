"""Warnings that point at the caller's own line."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings

#: Packages between a user's line and this one.
_FRAMEWORKS = frozenset(
    "langchain langchain_core langchain_classic langchain_community langgraph llama_index "
    "llama_index_instrumentation workflows haystack asyncio concurrent contextlib functools "
    "queue selectors threading".split()
)


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


class UnreadMarkersWarning(UserWarning):
    """A text has document markers that mark nothing: they are read as text."""


def warn_caller(warning: Warning) -> None:
    """Warn at the nearest line that is the caller's own: of no framework, nor of this package.

    Python's default filter shows the same words once for each line.
    """
    # Chains run in threads, for which the main thread waits.
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    for frame, line in [*traceback.walk_stack(sys._getframe(1)), *traceback.walk_stack(main)]:
        module = str(frame.f_globals.get("__name__"))
        if "rag_middle" not in module and module.partition(".")[0] not in _FRAMEWORKS:
            registry = frame.f_globals.setdefault("__warningregistry__", {})
            name = frame.f_code.co_filename
            warnings.warn_explicit(warning, None, name, line, module, registry)
            return
    warnings.warn(warning, stacklevel=2)
