"""What a search has found out so far, on disk after every candidate."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag_middle.calibration.objective import Outcome
from rag_middle.errors import CalibrationStateError
from rag_middle.files import append
from rag_middle.plain_data import parse_json

__all__ = ["Journal", "open_journal"]

_FORMAT = 2  # of lines and of what their verdicts are about; raised when either changes


class Journal:
    """Outcomes by candidate, each written before it is used.

    A search asks for the same candidates in the same order whenever the outcomes are the same, so
    that one that was killed is continued by starting it again: what is here needs no second run.
    """

    def __init__(self, file: FileIO | None, known: dict[str, Outcome]) -> None:
        self._file = file
        self._known = known

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Outcome:
        return self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome; on disk when this returns.

        Raises:
            CalibrationStateError: the file cannot be written; what it holds is whole.
        """
        if self._file is not None:
            self._write({"key": key, "outcome": asdict(outcome)})
        self._known[key] = outcome

    def _write(self, content: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            append(self._file, _line(content))
        except OSError as error:
            raise _cannot_write(str(self._file.name), error) from error


@contextmanager
def open_journal(path: Path | None, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal in a file, which is made where there is none; in memory without one.

    Args:
        path: of the file.
        identity: of the search, JSON-ready; it must be that of an existing file.

    Raises:
        CalibrationStateError: the file belongs to another search, is damaged, is in use,
            or cannot be written.
    """
    if path is None:
        yield Journal(None, {})
        return
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise CalibrationStateError(
            f"{path} is in use by another search. Wait for it, or choose another folder (--out)."
        ) from None
    except OSError as error:
        raise _cannot_write(str(path), error) from error
    try:
        known, kept = _read(path, identity)
        with _opened(path, kept) as file:
            journal = Journal(file, known)
            if not kept:
                journal._write({"format": _FORMAT, "identity": identity})
            yield journal
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
    written = read[0].get("format", 1)
    if written != _FORMAT:
        raise CalibrationStateError(
            f"{path} is the state of a search by another version of rag-middle (format {written}; "
            f"this version writes {_FORMAT}), and what it scored cannot be compared with what is "
            "scored now. Finish that search with that version, choose another folder (--out), or "
            "delete the file."
        )
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
        known = {each["key"]: Outcome(**each["outcome"]) for each in read[1:]}
        if not all(isinstance(key, str) for key in known):
            raise TypeError("a key is no text")
        return known, whole
    except (KeyError, TypeError) as error:
        raise _damaged(f"{path}", error) from error


def _opened(path: Path, kept: int) -> FileIO:
    try:
        file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        # The last line may be torn where the search was killed: its candidate runs again.
        file.truncate(kept)
    except OSError as error:
        raise _cannot_write(str(path), error) from error
    return file


def _cannot_write(path: str, error: OSError) -> CalibrationStateError:
    return CalibrationStateError(
        f"The state of the search cannot be written to {path!r} ({error.strerror or error}). Free "
        "space, correct the permissions, or choose another folder (--out); then run it again to "
        "go on."
    )


def _line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _content(line: bytes, place: str) -> dict[str, Any]:
    check, _, text = line.partition(b" ")
    try:
        if int(check, 16) != zlib.crc32(text):
            raise ValueError("the check sum is wrong")
        content = parse_json(text)
    except ValueError as error:
        raise _damaged(place, error) from error
    if not isinstance(content, dict):
        raise _damaged(place, ValueError("no object"))
    return content


def _damaged(place: str, error: Exception) -> CalibrationStateError:
    return CalibrationStateError(
        f"{place} is damaged ({error}). Delete the file to search from the start."
    )
