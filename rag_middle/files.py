"""Files that are written whole or not at all, and files that are read: no pipes, no devices."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path

from rag_middle.errors import OutputWriteError

_LEFT_SECONDS = 3600  # a file that nobody finished writing in that time is left over


def reason(error: Exception) -> str:
    """Why a file cannot be had, in a few words; a ValueError where no file has such a name."""
    return getattr(error, "strerror", None) or str(error)


def expanded(path: str | Path) -> Path:
    """The path with the home directory for a leading ``~``, as the package takes paths to write."""
    try:
        return Path(os.path.expanduser(path))
    except ValueError:  # a null byte after it: what opens the file says so
        return Path(path)


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


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """The content of a file, as :func:`open_regular` opens it.

    Raises:
        OSError: as there, or it holds more than `max_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes / 2**20:.0f} MiB")
    return content


def file_sha256(path: str | Path) -> str:
    """Digest of a file's bytes, as :func:`open_regular` opens it."""
    with open_regular(path) as file:
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
        for name in contents:
            remove_leftovers(path, f".{glob.escape(name)}.[0-9]*")
        for part, content in zip(unfinished, contents.values(), strict=True):
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for part, target in unfinished.items():
            part.replace(target)
    except (OSError, ValueError) as error:
        raise OutputWriteError(
            f"Nothing can be written to out={str(path)!r} ({reason(error)}). Choose "
            "another folder, free space or correct the permissions."
        ) from error
    finally:
        for part in unfinished:
            with suppress(OSError):
                part.unlink(missing_ok=True)  # left over where writing was interrupted


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Delete what writers of such files left that were killed an hour ago or longer."""
    for path in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                path.unlink()


def lock_file(path: str | Path) -> str:
    """The file to lock while another is written: beside it, whatever link leads to it.

    One that holds something is refused: many versions of filelock empty what they lock. Locks of
    this package hold nothing, so it is somebody else's file of that name; or, on a file system
    without locks, that of a process at work.

    Raises:
        ValueError: it is not empty.
        OSError: it cannot be looked at.
    """
    path = f"{os.path.realpath(path)}.lock"
    with suppress(FileNotFoundError):
        if os.path.getsize(path):
            raise ValueError(
                f"{path!r}, which is to be locked, is not empty. Move it away if it is a "
                "file of yours; if a process is at work here, wait for it"
            )
    return path


def check_appendable(path: str | Path) -> None:
    """Refuse a file to be continued that is a pipe or a device: it may never end.

    Raises:
        OSError: what is there is no regular file, or cannot be looked at.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")


def append(file: FileIO, content: bytes) -> None:
    """Write at the end of an unbuffered file, and force it to the disk.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    start = file.seek(0, os.SEEK_END)
    left = memoryview(content)
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(start)
        raise
