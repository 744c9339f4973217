"""Files that are whole at every moment, also where the disk fills up or the process dies."""

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
from typing import Any

from rag_middle.errors import OutputWriteError

__all__ = [
    "append",
    "check_lock_file",
    "checkpoint_states",
    "expanded",
    "open_regular",
    "read_regular",
    "reason",
    "remove_leftovers",
    "write_files",
]

_CHECKPOINT_FILES = (
    *("*.json", "*.safetensors", "*.bin", "*.gguf", "*.py"),
    *("*.jinja", "*/*.jinja", "*.model", "merges.txt", "vocab.txt", "*.tiktoken"),  # of tokenizers
)
#: One of them is in the local cache of the hub where a model or a tokenizer is.
_HUB_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")
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


def open_regular(path: str | Path, *, follow: bool = True) -> BufferedReader:
    """Open a file to be read, without waiting: not a pipe or a device, which may never end.

    Args:
        path: of the file.
        follow: read the target of a link; False: refuse links.

    Raises:
        OSError: there is no such regular file, or it may not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """The content of a file, as :func:`open_regular` opens it.

    Raises:
        OSError: as there, or it holds more than `max_bytes`.
    """
    with open_regular(path, follow=follow) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes / 2**20:.0f} MiB")
    return content


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


def check_lock_file(path: str | Path) -> None:
    """Refuse a lock file that holds something: many versions of filelock empty what they lock.

    Locks of this package hold nothing, so it is somebody else's file of that name; or, on a file
    system without locks, that of a process at work.

    Raises:
        ValueError: it is not empty.
        OSError: it cannot be looked at.
    """
    with suppress(FileNotFoundError):
        if os.path.getsize(path):
            raise ValueError(
                f"{str(path)!r}, which is to be locked, is not empty. Move it away if it is a "
                "file of yours; if a process is at work here, wait for it"
            )


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


def checkpoint_states(loading: Mapping[str, Any]) -> list[str | None]:
    """What changes when the files of a model, or of its tokenizer, change; one for each of the two.

    Of a folder, that is the names, sizes and times of files; of a name on the hub, the commit in
    the local cache; None of what is not here, and of a tokenizer that is an object. Reads no file
    of a folder.

    Args:
        loading: arguments of `RagMiddleModel.from_pretrained`.
    """
    name, tokenizer = loading["name_or_path"], loading.get("tokenizer")
    revision = loading.get("revision")
    of_model, of_tokenizer = (
        loading.get(options) or {} for options in ("model_options", "tokenizer_options")
    )
    states = [_checkpoint_state(name, {"revision": revision, **of_model})]
    if tokenizer is None:
        tokenizer, of_tokenizer = name, {"revision": revision, **of_tokenizer}
    is_named = isinstance(tokenizer, str | Path)
    return [*states, _checkpoint_state(tokenizer, of_tokenizer) if is_named else None]


def _checkpoint_state(name: str | Path, options: Mapping[str, Any]) -> str | None:
    subfolder = options.get("subfolder") or ""
    path = Path(os.path.expanduser(name), subfolder)
    if os.path.isdir(path):  # unlike Path.is_dir, also of names that no system takes
        files = sorted(file for pattern in _CHECKPOINT_FILES for file in path.glob(pattern))
        state = [
            (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns)
            for file in files
            if file.is_file()
        ]
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    from huggingface_hub import try_to_load_from_cache  # not quick, and few need it
    from huggingface_hub.errors import HFValidationError

    for file in _HUB_FILES:
        inside = f"{subfolder}/{file}" if subfolder else file
        try:
            found = try_to_load_from_cache(
                str(name), inside, options.get("cache_dir"), options.get("revision")
            )
        except HFValidationError:  # no name on the hub: loading says what is wrong with it
            return None
        if isinstance(found, str):
            parts = Path(found).parts  # .../snapshots/COMMIT/FILE
            return parts[len(parts) - len(Path(inside).parts) - 1]
    return None
