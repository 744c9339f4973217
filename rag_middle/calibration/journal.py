"""What a search has found out so far, on disk after every candidate."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from rag_middle.calibration.objective import Outcome
from rag_middle.errors import CalibrationStateError

__all__ = ["Journal", "open_journal"]


class Journal:
    """Outcomes by candidate, each written before it is used.

    A search asks for the same candidates in the same order whenever the outcomes are the same, so
    that one that was killed is continued by starting it again: what is here needs no second run.
    """

    def __init__(self, file: IO[bytes] | None, known: dict[str, Outcome]) -> None:
        self._file = file
        self._known = known

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Outcome:
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome; on disk when this returns."""
        self._known[key] = outcome
        if self._file is not None:
            self._file.write(_line({"key": key, "outcome": asdict(outcome)}))
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def open_journal(path: Path | None, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal in a file, which is made where there is none; in memory without one.

    Args:
        path: of the file.
        identity: of the search, JSON-ready; it must be that of an existing file.

    Raises:
        CalibrationStateError: the file belongs to another search, is damaged, or is in use.
    """
    if path is None:
        yield Journal(None, {})
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CalibrationStateError(
            f"{path} is in use by another search. Wait for it, or choose another folder (--out)."
        ) from None
    try:
        known, kept = _read(path, identity)
        with path.open("r+b" if path.exists() else "w+b") as file:
            # The last line may be torn where the search was killed: its candidate runs again.
            file.truncate(kept)
            file.seek(kept)
            if not kept:
                file.write(_line({"identity": identity}))
                file.flush()
                os.fsync(file.fileno())
            yield Journal(file, known)
    finally:
        lock.release()


def _read(path: Path, identity: Mapping[str, Any]) -> tuple[dict[str, Outcome], int]:
    """Outcomes, and the bytes of the file that are whole lines."""
    if not path.exists():
        return {}, 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].splitlines()
    if not lines:
        return {}, 0
    read = [_content(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    theirs = read[0].get("identity")
    mine = json.loads(json.dumps(identity))
    if theirs != mine:
        different = [
            name
            for name in {**mine, **(theirs if isinstance(theirs, dict) else {})}
            if not isinstance(theirs, dict) or theirs.get(name) != mine.get(name)
        ]
        raise CalibrationStateError(
            f"{path} is the state of another search: it differs in {', '.join(sorted(different))}. "
            "Continue that one with its own settings, choose another folder (--out), or delete "
            "the file."
        )
    try:
        return {each["key"]: Outcome(**each["outcome"]) for each in read[1:]}, whole
    except (KeyError, TypeError) as error:
        raise _damaged(f"{path}", error) from error


def _line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _content(line: bytes, place: str) -> dict[str, Any]:
    check, _, text = line.partition(b" ")
    try:
        if int(check, 16) != zlib.crc32(text):
            raise ValueError("the check sum is wrong")
        content = json.loads(text)
    except ValueError as error:
        raise _damaged(place, error) from error
    if not isinstance(content, dict):
        raise _damaged(place, ValueError("no object"))
    return content


def _damaged(place: str, error: Exception) -> CalibrationStateError:
    return CalibrationStateError(
        f"{place} is damaged ({error}). Delete the file to search from the start."
    )
