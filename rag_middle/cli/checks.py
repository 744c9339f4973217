"""What can be refused before a model is loaded, and most of it before PyTorch is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_middle.errors import (
    EvaluationDataError,
    OutputWriteError,
    RagMiddleError,
    UnsupportedGenerationError,
)
from rag_middle.files import reason
from rag_middle.wording import Argument


def check_output_folder(folder: Path) -> None:
    """Make sure that a folder can be made and written to, without making it.

    Raises:
        OutputWriteError: it cannot.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    try:
        with suppress(FileNotFoundError):
            os.stat(folder)  # a name that no folder can have is refused
        descriptor, probe = tempfile.mkstemp(prefix=".rag-middle-", dir=there)
        os.close(descriptor)
        Path(probe).unlink()
    except (OSError, ValueError) as error:
        raise OutputWriteError(
            "Nothing can be written to ",
            Argument("out", str(folder)),
            f" ({reason(error)}). Choose another folder, free space or correct the permissions.",
        ) from error


def check_readable(path: Path, what: str, kind: str, error: type[RagMiddleError]) -> None:
    """Raise `error` where there is no such file; `kind` says what it should be."""
    if not os.path.isfile(path):
        other = "it is a folder" if os.path.isdir(path) else "it is no regular file"
        problem = other if os.path.exists(path) else "there is none"
        raise error(
            f"The {what} {str(path)!r} cannot be read ({problem}). Pass the path of {kind}."
        )


def check_data(asked: Mapping[str, Any]) -> None:
    """Raise EvaluationDataError where the file of questions that is asked for is not there."""
    if "data" in asked:
        check_readable(asked["data"], "data file", "a file of JSON lines", EvaluationDataError)


def check_method(method: str, method_options: dict[str, Any] | None = None) -> None:
    """Raises UnknownNameError, MethodConfigError or ProfileFormatError for no such method."""
    from rag_middle.methods import resolve_method

    resolve_method(method, method_options)


def check_generation(options: dict[str, Any]) -> None:
    """Raises UnsupportedGenerationError where fields of `GenerationOptions` are refused.

    And those of sampling without it: Python and the server, whose callers set them for other
    requests too, take them.
    """
    from rag_middle.generation import GenerationOptions

    given = GenerationOptions(**options)
    for name in ("top_p", "top_k", "typical_p"):
        if not given.temperature and getattr(given, name) != getattr(GenerationOptions(), name):
            raise UnsupportedGenerationError(
                Argument(name), " says what to sample from, and without ",
                Argument("temperature"), " nothing is sampled: add it, such as ",
                Argument("temperature", 0.7), ".",
            )  # fmt: skip
