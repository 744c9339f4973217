"""Records from a file or a folder, and a report of everything that was left out."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from rag_middle.errors import DocumentLoadError, RetrievalConfigError
from rag_middle.files import opened_folder, read_regular
from rag_middle.retrieval.formats import READERS
from rag_middle.retrieval.isolated import MOST_SKIPPED, Reading
from rag_middle.retrieval.manifest import DATA_FILE, MANIFEST, is_index_folder
from rag_middle.retrieval.records import Record, Skipped

__all__ = ["MAX_FILE_BYTES", "Loaded", "check_exists", "content_hash", "load"]

MAX_FILE_BYTES = 32 * 2**20
"""Larger files are left out unless asked for: they are rarely meant, and are held in memory."""

_SUFFIXES = ", ".join(filter(None, READERS)) + ", and text without a suffix"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The result of :func:`load`.

    Attributes:
        records: in order of their sources, no two with the same title and text.
        skipped: what was left out, and why.
        content_hash: of the names and bytes of all files; equal hashes give equal records. Where
            a file may be read another time (its process was ended from outside, say), no other
            hash equals it.
    """

    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...]
    content_hash: str


def load(path: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> Loaded:
    """Read every document in a file or folder.

    Suffixes: ``.txt``, ``.md``, ``.rst``, ``.jsonl``, ``.html``, ``.pdf``, ``.docx``, and none
    where a file is text. In a folder, what cannot be read
    is skipped and reported: other suffixes, binary or damaged files, files above `max_file_bytes`,
    hidden files and folders, links, saved indexes, and records met before under another name.
    Formats other than plain text are parsed by another process, within limits of time and memory.

    Args:
        path: of a file or a folder.
        max_file_bytes: larger files are skipped.

    Warns:
        ReadingWarning: that process cannot be started, and files are read without its limits.

    Raises:
        DocumentLoadError: there is nothing at `path`, a single file cannot be read, or a folder
            holds no document.
        RetrievalConfigError: `max_file_bytes` is not positive.
        MissingExtraError: a format needs a package that is not installed.
    """
    digest = hashlib.sha256()
    skipped: list[Skipped] = []
    records: dict[str, Record] = {}
    root = Path(path)
    with Reading() as reading:
        for entry in _contents(root, max_file_bytes):
            _update_digest(digest, entry)
            before, more = len(skipped), 0
            for item in _items(entry, reading):
                if isinstance(item, int):
                    more += item
                    continue
                if isinstance(item, Record):
                    if (first := records.setdefault(item.content_hash, item)) is item:
                        continue
                    reason = f"same title and text as {_location(first)}, which is kept."
                    item = Skipped(source=_location(item), reason=reason)
                if len(skipped) - before < MOST_SKIPPED:
                    skipped.append(item)
                else:
                    more += 1
            if more:
                reason = (
                    f"{more} more lines or pages of it are left out. Correct those before first."
                )
                skipped.append(Skipped(source=entry.source, reason=reason))
        if reading.may_differ:
            digest.update(os.urandom(16))
    if not records:
        raise _no_documents(root, skipped)
    return Loaded(
        records=tuple(records.values()), skipped=tuple(skipped), content_hash=digest.hexdigest()
    )


def content_hash(path: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> str:
    """The hash that :func:`load` would report, without parsing anything.

    Raises:
        DocumentLoadError: there is nothing at `path`.
    """
    digest = hashlib.sha256()
    for entry in _contents(Path(path), max_file_bytes):
        _update_digest(digest, entry)
    return digest.hexdigest()


def check_exists(path: str | Path) -> None:
    """Raise `DocumentLoadError` where there is nothing at `path`."""
    if not os.path.exists(path):
        raise DocumentLoadError(
            f"There is no file or folder {str(path)!r}. Check the path ('~' is not expanded)."
        )


@dataclass(frozen=True)
class _File:
    source: str
    suffix: str
    content: bytes


def _contents(root: Path, max_file_bytes: int) -> Iterator[_File | Skipped]:
    if max_file_bytes <= 0:
        raise RetrievalConfigError(f"max_file_bytes must be positive, got {max_file_bytes}.")
    check_exists(root)
    entries: list[tuple[str, Path | Skipped]] = [(_printable(root.name), root)]
    if os.path.isdir(root):
        entries = sorted(_walk(root), key=lambda entry: entry[0])
    for source, entry in entries:
        if isinstance(entry, Skipped):
            yield entry
            continue
        try:
            content = _read(entry, max_file_bytes, root)
            yield _File(source, entry.suffix.lower(), content)
        except DocumentLoadError as error:
            yield Skipped(source=source, reason=str(error))


def _walk(root: Path) -> Iterator[tuple[str, Path | Skipped]]:
    """Every entry that may be a document, and what is left out by its name or kind."""

    def skip(path: Path, reason: str) -> tuple[str, Skipped]:
        source = _printable(path.relative_to(root).as_posix())
        return source, Skipped(source=source, reason=reason)

    folders = [root]  # not os.walk, which recurses: folders may be nested deeper than Python calls
    while folders:
        folder = folders.pop()
        try:
            contents = _listed(root, folder)
        except OSError as error:
            yield skip(folder, f"folder cannot be read ({error.strerror}).")
            continue
        is_index = folder != root and is_index_folder(folder, follow=False)
        if is_index:
            yield skip(folder, "a saved index, not documents.")
        for name, is_link, is_folder in contents:
            path = folder / name
            kind = "folder" if is_folder else "file"
            if is_index and (name in (MANIFEST, ".lock") or DATA_FILE.fullmatch(name)):
                continue  # whatever else is there: a manifest must not hide other files
            if name.startswith("."):
                yield skip(path, f"hidden {kind}; rename it to have it read.")
            elif is_link:
                to = " to a folder" if is_folder else ""
                yield skip(path, f"link{to}; load its target by its own path.")
            elif not is_folder:
                yield _printable(path.relative_to(root).as_posix()), path
            else:
                folders.append(path)


def _listed(root: Path, folder: Path) -> list[tuple[str, bool, bool]]:
    """Names in a folder, and whether each is a link, and a folder."""
    names = []
    folder.stat()  # ends where paths become too long: each folder is opened from the first one on
    below = folder.relative_to(root).parts
    with opened_folder(root, below) as opened, os.scandir(opened) as entries:
        for entry in entries:
            is_link = is_folder = False
            with suppress(OSError):  # else a file, and reading it says why
                is_link = entry.is_symlink()
                is_folder = entry.is_dir()
            names.append((entry.name, is_link, is_folder))
    return names


def _read(path: Path, max_file_bytes: int, root: Path) -> bytes:
    if path.suffix.lower() not in READERS:
        raise DocumentLoadError(f"{path.suffix!r} is not read. Read are {_SUFFIXES}.")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise DocumentLoadError("it is no regular file. Copy its content into one.")
        if status.st_size > max_file_bytes:
            raise DocumentLoadError(
                f"it has {status.st_size / 2**20:.0f} MiB, above the limit of "
                f"{max_file_bytes / 2**20:.0f} MiB for one file. Split it, or raise the limit: "
                "max_file_bytes (--max-file-mib)."  # kept with the index, so for both readers
            )
        if path is root:
            content = read_regular(path, max_file_bytes)
        else:
            with opened_folder(root, path.relative_to(root).parts[:-1]) as folder:
                content = read_regular(Path(path.name), max_file_bytes, follow=False, folder=folder)
    except OSError as error:
        raise DocumentLoadError(
            f"it cannot be read ({error.strerror}). Check its permissions."
        ) from error
    if not content:
        raise DocumentLoadError("it is empty (0 bytes). Fill it or remove it.")
    return content


def _items(entry: _File | Skipped, reading: Reading) -> Iterator[Record | Skipped | int]:
    if isinstance(entry, Skipped):
        yield entry
        return
    for item in reading.read(entry.content, entry.suffix, entry.source):
        yield _titled(item) if isinstance(item, Record) else item


def _titled(record: Record) -> Record:
    """The record under the name of its file where it has no title, so that it can be cited."""
    if record.title:
        return record
    stem = PurePosixPath(record.source).stem
    title = " ".join(stem.replace("_", " ").replace("-", " ").split()) or stem
    if "line" in record.metadata:  # of a .jsonl file, whose lines are documents of their own
        title += f", line {record.metadata['line']}"
    return replace(record, title=title, titled_by_name=True)


def _update_digest(digest: hashlib._Hash, entry: _File | Skipped) -> None:
    is_file = isinstance(entry, _File)
    content = entry.content if isinstance(entry, _File) else entry.reason.encode()
    for part in (b"file" if is_file else b"skip", entry.source.encode(), content):
        # Of fixed length, so that parts cannot run together.
        digest.update(hashlib.sha256(part).digest())


def _no_documents(root: Path, skipped: Sequence[Skipped]) -> DocumentLoadError:
    if root.is_file() and len(skipped) == 1:
        return DocumentLoadError(f"{str(root)!r} cannot be loaded: {skipped[0].reason}")
    shown = "".join(f"\n  {entry}" for entry in skipped[:5])
    more = f"\n  and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    left_out = f" Left out:{shown}{more}" if skipped else " It is empty."
    return DocumentLoadError(
        f"There are no documents in {str(root)!r}. Put files with the suffixes {_SUFFIXES} "
        f"there.{left_out}"
    )


def _location(record: Record) -> str:
    for unit in ("line", "page"):
        if unit in record.metadata:
            return f"{record.source}:{record.metadata[unit]}"
    return record.source


def _printable(name: str) -> str:
    """A file name may hold bytes that are no text; a source is always text.

    Such a byte is written as U+FFFD and its two hexadecimal digits, and U+FFFD itself as two of
    them, so that different names stay different.
    """
    name = name.replace("\ufffd", "\ufffd\ufffd")
    return re.sub("[\udc80-\udcff]", lambda byte: f"\ufffd{ord(byte[0]) - 0xDC00:02x}", name)
