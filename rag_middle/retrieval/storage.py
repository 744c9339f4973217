"""Atomic storage of an index on disk.

A folder holds ``manifest.json`` and the two files it names, each named after its own content::

    manifest.json   vectors-<hash>.faiss   chunks-<hash>.jsonl

New files are written beside the old ones and flushed to the disk; then one rename replaces the
manifest, and files that it does not name are removed. A process that is stopped in between leaves
the old index or the new one, never a mixture.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag_middle.errors import (
    IndexFormatError,
    IndexLockedError,
    IndexWriteError,
    RetrievalConfigError,
)
from rag_middle.files import check_lock_file, file_sha256, reason
from rag_middle.plain_data import parse_json
from rag_middle.retrieval.manifest import DATA_FILE, MANIFEST, REBUILD, Manifest, read_manifest
from rag_middle.retrieval.vectors import faiss, is_store
from rag_middle.wording import Argument

__all__ = ["Saved", "locked", "manifest_hash", "read", "write"]

_LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A saved index as it was read.

    Attributes:
        manifest: its manifest.
        vectors: the faiss index.
        rows: the lines of the chunk file.
        manifest_hash: identifies this state of the folder.
    """

    manifest: Manifest
    vectors: Any
    rows: list[dict[str, Any]]
    manifest_hash: str


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of `folder`, which is made if it is not there.

    The operating system lets go of the lock when a process ends, however it ends. A thread that
    holds the lock may take it again.

    Raises:
        IndexLockedError: another writer is at work.
        IndexWriteError: the folder cannot be made or written, or holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_other_files(folder)
        check_lock_file(folder / _LOCK)
        lock = FileLock(folder.resolve() / _LOCK, timeout=0, is_singleton=True)
        lock.acquire()
    except IndexWriteError:
        raise
    except Timeout as error:
        raise IndexLockedError(
            f"Another process is writing the index {str(folder)!r}. Wait until it is done, or "
            "choose another ",
            Argument("folder"),
            ".",
        ) from error
    except (OSError, ValueError) as error:
        raise _cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def write(
    folder: Path, manifest: Manifest, vectors: Any, rows: Iterable[dict[str, Any]]
) -> tuple[Manifest, str]:
    """Save an index; call it within :func:`locked`. File names and hashes are filled in.

    Returns:
        The manifest as it was saved, and its hash.

    Raises:
        IndexWriteError: the disk is full, or the folder cannot be written.
        RetrievalConfigError: metadata of a chunk cannot be written as JSON.
    """

    def write_vectors(path: Path) -> None:
        # Not by its name: faiss reports no error where the disk is full when it closes the file.
        with path.open("wb") as file:
            faiss().write_index(vectors, faiss().PyCallbackIOWriter(file.write))

    def write_rows(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                file.write(_json_line(row))

    try:
        vectors_name, vectors_hash = _write_named(folder, "vectors-{}.faiss", write_vectors)
        chunks_name, chunks_hash = _write_named(folder, "chunks-{}.jsonl", write_rows)
        manifest = replace(
            manifest,
            vectors=vectors_name,
            vectors_sha256=vectors_hash,
            chunks=chunks_name,
            chunks_sha256=chunks_hash,
        )
        content = manifest.to_json().encode()
        part = folder / f"{MANIFEST}.part"
        part.write_bytes(content)
        _flush_to_disk(part)
        _flush_to_disk(folder)  # the new files must be there before the manifest names them
        os.replace(part, folder / MANIFEST)
        _flush_to_disk(folder)
        _remove_unnamed(folder, manifest)
    except (OSError, RuntimeError) as error:  # RuntimeError: faiss cannot write
        _remove_unfinished(folder)
        raise _cannot_write(folder, error) from error
    return manifest, hashlib.sha256(content).hexdigest()


def read(folder: Path) -> Saved:
    """The index in `folder`, every byte checked against its manifest.

    Raises:
        IndexFormatError: there is none, or it is damaged, incomplete or of another version.
    """
    while True:
        content = _manifest_bytes(folder)
        try:
            return _read(folder, content)
        except IndexFormatError:
            # A writer may have replaced the files between the manifest and them.
            if _manifest_bytes(folder) == content:
                raise


def manifest_hash(folder: Path) -> str | None:
    """Identifies the state of the index in `folder`; None where there is none."""
    try:
        return hashlib.sha256(read_manifest(folder)).hexdigest()
    except (OSError, ValueError):
        return None


def _manifest_bytes(folder: Path) -> bytes:
    try:
        return read_manifest(folder)
    except (OSError, ValueError) as error:
        raise IndexFormatError(
            f"There is no index in {str(folder)!r} ({reason(error)}). Build one with "
            "build_index(documents, folder) (rag-middle index)."
        ) from error


def _read(folder: Path, content: bytes) -> Saved:
    manifest = Manifest.from_json(content, folder / MANIFEST)
    _check_digest(folder / manifest.vectors, manifest.vectors_sha256)
    _check_digest(folder / manifest.chunks, manifest.chunks_sha256)
    try:
        vectors = faiss().read_index(str(folder / manifest.vectors))
        with (folder / manifest.chunks).open(encoding="utf-8") as file:
            rows = [parse_json(line) for line in file]
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise IndexFormatError(
            f"The index {str(folder)!r} cannot be read ({reason}). ", *REBUILD
        ) from error
    if not is_store(vectors):
        raise IndexFormatError(
            f"The index {str(folder)!r} holds a faiss index of another type "
            f"({type(vectors).__name__}). ",
            *REBUILD,
        )
    sizes = (len(rows), int(vectors.ntotal), int(vectors.d))
    if sizes != (manifest.count, manifest.count, manifest.dimension):
        raise IndexFormatError(
            f"The index {str(folder)!r} contradicts its manifest: {sizes[0]} chunks and {sizes[1]} "
            f"vectors of length {sizes[2]}; the manifest says {manifest.count}, {manifest.count} "
            f"and {manifest.dimension}. ",
            *REBUILD,
        )
    return Saved(
        manifest=manifest,
        vectors=vectors,
        rows=rows,
        manifest_hash=hashlib.sha256(content).hexdigest(),
    )


def _check_digest(path: Path, expected: str) -> None:
    try:
        digest = file_sha256(path)
    except OSError as error:
        raise IndexFormatError(
            f"The index is incomplete: {str(path)!r} cannot be read ({error.strerror}). ", *REBUILD
        ) from error
    if digest != expected:
        raise IndexFormatError(
            f"The index is damaged: {str(path)!r} has sha256 {digest[:12]}..., its manifest says "
            f"{expected[:12]}.... ",
            *REBUILD,
        )


def _write_named(folder: Path, pattern: str, write_to: Callable[[Path], None]) -> tuple[str, str]:
    """Write a file and name it after its content: (name, sha256)."""
    part = folder / f"{pattern.format('new')}.part"
    write_to(part)
    _flush_to_disk(part)
    digest = file_sha256(part)
    name = pattern.format(digest[:16])
    os.replace(part, folder / name)
    return name, digest


def _json_line(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RetrievalConfigError(
            f"The metadata of a chunk of {row['source']!r} cannot be saved as JSON ({error}). Keep "
            "text, finite numbers, lists and dictionaries."
        ) from error


def _flush_to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    # A file is opened for writing, which some systems require.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a failed attempt left: it may be what fills the disk."""
    with suppress(OSError, IndexFormatError):
        saved = folder / MANIFEST
        if saved.exists():
            _remove_unnamed(folder, Manifest.from_json(read_manifest(folder), saved))
        else:
            for path in folder.iterdir():
                if DATA_FILE.fullmatch(path.name):
                    path.unlink(missing_ok=True)


def _remove_unnamed(folder: Path, manifest: Manifest) -> None:
    for path in folder.iterdir():
        if DATA_FILE.fullmatch(path.name) and path.name not in (manifest.vectors, manifest.chunks):
            path.unlink(missing_ok=True)


def _refuse_other_files(folder: Path) -> None:
    for path in folder.iterdir():
        if not (DATA_FILE.fullmatch(path.name) or path.name in (MANIFEST, _LOCK)):
            raise IndexWriteError(
                f"The folder {str(folder)!r} holds something else ({path.name!r}): choose an empty "
                "or a new folder for the index (",
                Argument("folder"),
                ").",
            )


def _cannot_write(folder: Path, error: Exception) -> IndexWriteError:
    return IndexWriteError(
        f"The index cannot be saved in {str(folder)!r} ({reason(error).strip()}). Free space, "
        "correct the permissions, or choose another ",
        Argument("folder"),
        " (XDG_CACHE_HOME moves the default one). What was saved there before is as it was.",
    )
