"""The outcomes of a search so far, on disk after every candidate."""

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
from rag_middle.errors import FileFormatError
from rag_middle.files import append, check_appendable, lock_file, reason
from rag_middle.plain_data import parse_json

_FORMAT = 2  # of lines and of what their verdicts are about; raised when either changes
_ANOTHER_FOLDER = ("choose another folder (--out)",)


class Journal:
    """Outcomes by candidate, each written before it is used.

    A search asks for the same candidates in the same order whenever the outcomes are the same, so
    one that was killed is continued by starting it again: outcomes in the journal are not computed
    a second time.

    Args:
        file: unbuffered; None to keep outcomes in memory only.
        outcomes: that the file holds.
    """

    def __init__(
        self, file: FileIO | None = None, outcomes: Mapping[str, Outcome] | None = None
    ) -> None:
        self._file = file
        self._outcomes = dict(outcomes or {})

    def __contains__(self, key: str) -> bool:
        return key in self._outcomes

    def __getitem__(self, key: str) -> Outcome:
        return self._outcomes[key]

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome; on disk when this returns.

        Raises:
            FileFormatError: the file cannot be written; what it holds is whole.
        """
        if self._file is not None:
            _append_line(self._file, {"key": key, "outcome": asdict(outcome)})
        self._outcomes[key] = outcome


@contextmanager
def open_journal(path: Path | None, identity: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal in a file, which is created if it does not exist; in memory without a file.

    Args:
        identity: of the search, JSON-ready; must equal that in an existing file.

    Raises:
        FileFormatError: the file belongs to another search, is damaged, is in use,
            or cannot be written.
    """
    if path is None:
        yield Journal()
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file(path), timeout=0)
        check_appendable(path)
        lock.acquire()
    except Timeout:
        raise FileFormatError(
            f"{path} is in use by another search. Wait for it, or ", *_ANOTHER_FOLDER, "."
        ) from None
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error
    try:
        outcomes, whole_bytes = _read(path, identity)
        try:
            file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            # The last line may be torn where the search was killed: its candidate runs again.
            file.truncate(whole_bytes)
        except OSError as error:
            raise _write_error(path, error) from error
        with file:
            if not whole_bytes:
                _append_line(file, {"format": _FORMAT, "identity": identity})
            yield Journal(file, outcomes)
    finally:
        lock.release()


def _read(path: Path, identity: Mapping[str, Any]) -> tuple[dict[str, Outcome], int]:
    """Outcomes, and the bytes of the file that are whole lines."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise _write_error(path, error) from error
    whole_bytes = content.rfind(b"\n") + 1
    lines = content[:whole_bytes].splitlines()
    if not lines:
        if not _as_line({"format": _FORMAT, "identity": identity}).startswith(content):
            raise FileFormatError(
                f"{path} is not the state of a search. ", *_ANOTHER_FOLDER, ", or delete the file."
            )
        return {}, 0
    header, *entries = [
        _parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)
    ]
    version = header.get("format", 1)
    if version != _FORMAT:
        raise FileFormatError(
            f"{path} is the state of a search by another version of rag-middle (format {version}; "
            f"this version writes {_FORMAT}), and its scores cannot be compared with new ones. "
            "Finish that search with that version, ",
            *_ANOTHER_FOLDER,
            ", or delete the file.",
        )
    mine, theirs = json.loads(json.dumps(identity)), header.get("identity")
    if theirs != mine:
        theirs = theirs if isinstance(theirs, dict) else {}
        different = sorted(
            name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)
        )
        if different:
            raise FileFormatError(
                f"{path} is the state of another search: it differs in {', '.join(different)}. "
                "Continue that one with its own settings, ",
                *_ANOTHER_FOLDER,
                ", or delete the file.",
            )
    try:
        outcomes = {entry["key"]: Outcome(**entry["outcome"]) for entry in entries}
        if not all(isinstance(key, str) for key in outcomes):
            raise TypeError("a key is not a string")
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(f"{path}", error) from error
    return outcomes, whole_bytes


def _as_line(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _append_line(file: FileIO, content: Mapping[str, Any]) -> None:
    try:
        append(file, _as_line(content))
    except OSError as error:
        raise _write_error(Path(str(file.name)), error) from error


def _parse_line(line: bytes, source: str) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError("the checksum is wrong")
        content = parse_json(text)
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise _damage_error(source, error) from error
    return content


def _write_error(path: Path, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"The state of the search cannot be written to {str(path)!r} ({reason(error)}). "
        "Free space, correct the permissions, or ",
        *_ANOTHER_FOLDER,
        "; then run it again to go on.",
    )


def _damage_error(source: str, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"{source} is damaged ({error}). Delete the file to search from the start."
    )
