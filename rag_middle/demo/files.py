"""Results as files: all of them, whole, or an error that says why not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rag_middle.errors import OutputWriteError

__all__ = ["DemoFiles", "check_output_folder", "write_files"]


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where the demonstration's results lie.

    Attributes:
        html: the page.
        png: the picture.
        json: everything as data.
    """

    html: Path
    png: Path
    json: Path


def check_output_folder(folder: str | Path) -> None:
    """Make the folder, and make sure that it can be written to, before minutes are spent.

    Raises:
        OutputWriteError: it cannot.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(prefix=".rag-middle-", dir=path)
        os.close(descriptor)
        Path(probe).unlink()
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_files(folder: str | Path, contents: Mapping[str, bytes]) -> None:
    """Write files by name. A file that is there is replaced by the whole new one or stays.

    Raises:
        OutputWriteError: the folder cannot be written to.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            _write(path / name, content)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # left over where writing was interrupted


def _cannot_write(folder: Path, error: OSError) -> OutputWriteError:
    return OutputWriteError(
        f"Nothing can be written to out={str(folder)!r} ({error.strerror or error}). Choose "
        "another folder, free space or correct the permissions."
    )
