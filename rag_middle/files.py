"""Files that are written whole or not at all, and where they are."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

from rag_middle.errors import OutputWriteError


def reason(error: Exception) -> str:
    """Why a file cannot be had, in a few words; a ValueError where no file has such a name."""
    return getattr(error, "strerror", None) or str(error)


def expanded(path: str | Path) -> Path:
    """The path with the home directory for a leading ``~``, as the package takes paths to write."""
    return Path(os.path.expanduser(path))


def user_cache(name: str) -> Path:
    """A folder of this package in the user's cache, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rag-middle", name)


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file to be read, without waiting: not a pipe or a device, which may never end.

    Raises:
        OSError: there is no such regular file, or it may not be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(path, "rb")


def file_sha256(path: str | Path) -> str:
    """Digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_files(folder: str | Path, contents: Mapping[str, bytes]) -> None:
    """Write files by name into a folder, which is made if it is not there.

    What is there is replaced once all new files are on the disk.

    Raises:
        OutputWriteError: the folder cannot be written to; files that are there are whole.
    """
    path = expanded(folder)
    unfinished = {path / f".{name}.{os.getpid()}": path / name for name in contents}
    try:
        path.mkdir(parents=True, exist_ok=True)
        try:
            for part, content in zip(unfinished, contents.values(), strict=True):
                with part.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for part, target in unfinished.items():
                part.replace(target)
        finally:
            for part in unfinished:
                part.unlink(missing_ok=True)  # left over where writing was interrupted
    except (OSError, ValueError) as error:
        raise OutputWriteError(
            f"Nothing can be written to out={str(path)!r} ({reason(error)}). Choose "
            "another folder, free space or correct the permissions."
        ) from error
