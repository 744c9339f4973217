"""A disk that can be read and not written: one line from every writer, and nothing changes."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rag_middle import DocumentCache, RagMiddleError
from rag_middle.demo import write_demonstration
from rag_middle.methods.parallel_context.document_states import DocumentStates
from tests.attacks.hostile import report
from tests.attacks.test_full_disks import WRITERS, Write, check_index, index
from tests.demo.conftest import made_up

pytest.importorskip("faiss")
pytest.importorskip("matplotlib")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_read_only: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, as root may write where permissions and mounts are those of a test."""
    if not _read_only or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate"):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
        return
    path = arguments[0]
    if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_read_only[0]):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))


@functools.cache
def _hook_once() -> None:
    sys.addaudithook(_refuse)  # for good; it does nothing while no folder is named


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """No file below `folder` can be made, opened for writing, renamed or deleted."""
    _hook_once()
    _read_only.append(str(folder))
    try:
        yield
    finally:
        _read_only.clear()


def cached_states(folder: Path, number: int) -> None:
    keys, values = ((torch.full((2, 3, 4), float(number)),) for _ in range(2))
    states = DocumentStates(keys, values)
    DocumentCache(directory=folder / "cache").put(f"{number:064x}", states)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_refused(write: Write, folder: Path) -> None:
    for state in (0, 1):  # where there is nothing, and over what is there
        before = contents(folder)
        with read_only(folder), pytest.raises(RagMiddleError, match="ead-only") as raised:
            write(folder, state)
        assert "\n" not in str(raised.value)
        assert str(folder) in str(raised.value)
        assert contents(folder) == before
        if write is index and state:
            with read_only(folder):
                check_index(folder, state - 1)  # reading is possible
        write(folder, state)
    report(f"{getattr(write, '__name__', write)}: 2 writes into a read-only folder")


@pytest.mark.parametrize("write", [*WRITERS, cached_states], ids=lambda write: write.__name__)
@pytest.mark.one_in(3)
def test_every_writer_says_so(write: Write, tmp_path: Path) -> None:
    check_refused(write, tmp_path)


@pytest.mark.slow
def test_the_demonstration_says_so(tmp_path: Path) -> None:
    shown = made_up()
    check_refused(lambda folder, _: write_demonstration(shown, folder / "demo") and None, tmp_path)
