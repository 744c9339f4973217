"""One record per answer, in an append-only file that a killed run can be continued from.

Lines of JSON: a header that says what is measured, a line for each method when it is first used,
and a line per answer. Only whole lines count: what a killed run left of its last line is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag_middle.errors import EvaluationRecordsError
from rag_middle.files import append
from rag_middle.generation.identity import display_name
from rag_middle.plain_data import parse_json

__all__ = ["FORMAT", "Key", "Record", "Records", "open_records"]

FORMAT = 1

#: Method label, condition name, item id.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One answer and its scores.

    Attributes:
        method: label of the method.
        condition: name of the condition.
        item: id of the question.
        scores: by metric.
        answer: what the model wrote; None where it was scored by likelihood.
        prompt_tokens: of the prompt as sent.
        applied: whether the method could act on this prompt.
    """

    method: str
    condition: str
    item: str
    scores: Mapping[str, float]
    answer: str | None
    prompt_tokens: int
    applied: bool

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, bool) and name != "applied"):
                raise TypeError(f"{name} is {value!r}")
        for name, score in self.scores.items():
            if isinstance(score, bool) or not isinstance(score, int | float):
                raise TypeError(f"the score {name} is {score!r}")

    @property
    def key(self) -> Key:
        """What it is the answer to."""
        return self.method, self.condition, self.item


#: Types of a record's fields, as files may hold others.
_KINDS: dict[str, Any] = {
    "method": str,
    "condition": str,
    "item": str,
    "scores": Mapping,
    "answer": str | None,
    "prompt_tokens": int,
    "applied": bool,
}


class Records:
    """The answers of one measurement, in memory and, where there is a file, on disk."""

    def __init__(self, file: FileIO | None = None) -> None:
        self._file = file
        self._records: dict[Key, Record] = {}
        self._methods: dict[str, str] = {}

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def __getitem__(self, key: Key) -> Record:
        return self._records[key]

    def declare(self, label: str, method: str) -> None:
        """Say which method a label stands for.

        Raises:
            EvaluationRecordsError: it stood for another one when earlier records were made.
        """
        known = self._methods.get(label)
        if known is not None and known != method:
            raise EvaluationRecordsError(
                f"Earlier records call {known} {label!r}; now it is {method}. Give the method "
                "another label, or write to another file."
            )
        if known is None:
            self._methods[label] = method
            self._write([{"kind": "method", "label": label, "method": method}])

    def add(self, records: Iterable[Record]) -> None:
        """Keep records; those in a file are on disk when this returns.

        Raises:
            EvaluationRecordsError: the file cannot be written; what it holds is whole.
        """
        new = list(records)
        self._write([{"kind": "record", **asdict(record)} for record in new])
        self._records.update((record.key, record) for record in new)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            append(self._file, text.encode("utf-8"))
        except OSError as error:
            raise _cannot_write(str(self._file.name), error) from error

    def _read(self, line: dict[str, Any]) -> None:
        kind = line.pop("kind")
        if kind == "method":
            label, method = line["label"], line["method"]
            if not isinstance(label, str) or not isinstance(method, str):
                raise TypeError(f"the method {label!r} is {method!r}")
            self._methods[label] = method
        else:
            record = Record(**line)
            self._records[record.key] = record


@contextmanager
def open_records(path: str | Path | None, identity: Mapping[str, Any]) -> Iterator[Records]:
    """Records of a measurement, those of an earlier run included.

    Args:
        path: a file to continue or to make; None keeps records in memory.
        identity: what is measured, JSON-ready; the file's header must say the same.

    Raises:
        EvaluationRecordsError: the file is damaged before its last line, belongs to another
            measurement, is in use, or cannot be written.
    """
    if path is None:
        yield Records()
        return
    path = Path(path)
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise EvaluationRecordsError(
            f"Another run is writing {str(path)!r}. Wait for it, or write to another file."
        ) from error
    except OSError as error:
        raise _cannot_write(str(path), error) from error
    try:
        with _opened(path) as file:
            records = Records(file)
            _load(records, file, path, json.loads(json.dumps(identity)))
            yield records
    finally:
        lock.release()


def _opened(path: Path) -> FileIO:
    try:
        return path.open("a+b", buffering=0)
    except OSError as error:
        raise _cannot_write(str(path), error) from error


def _cannot_write(path: str, error: OSError) -> EvaluationRecordsError:
    return EvaluationRecordsError(
        f"Records cannot be written to {path!r} ({error.strerror or error}). Free space, correct "
        "the permissions, or write to another file; then run it again to go on."
    )


def _load(records: Records, file: FileIO, path: Path, identity: dict[str, Any]) -> None:
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):  # the run was killed while it wrote this line
        file.truncate(whole)
    lines = content[:whole].splitlines()
    if not lines:
        records._write([{"kind": "header", "format": FORMAT, **identity}])
        return
    for number, line in enumerate(lines, start=1):
        try:
            parsed = parse_json(line)
            if number == 1:
                _check_header(parsed, identity, path)
            else:
                records._read(parsed)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, EvaluationRecordsError):
                raise
            raise EvaluationRecordsError(
                f"Line {number} of {str(path)!r} is damaged ({error}). Remove that line to have "
                "its question asked again, or write to another file."
            ) from error


def _check_header(header: dict[str, Any], identity: dict[str, Any], path: Path) -> None:
    header = _without_path(header)
    wanted = {"kind": "header", "format": FORMAT, **identity}
    differing = [name for name in {**wanted, **header} if header.get(name) != wanted.get(name)]
    if differing:
        was = {name: header.get(name) for name in differing}
        now = {name: wanted.get(name) for name in differing}
        raise EvaluationRecordsError(
            f"The records in {str(path)!r} belong to another measurement: they have {was}, this "
            f"run {now}. Write to another file, or remove that one to begin anew."
        )


def _without_path(header: dict[str, Any]) -> dict[str, Any]:
    """A header whose model goes by its folder's name, also where earlier versions kept the path.

    Another model of that name still differs, by the digest of its weights.
    """
    model = header.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("name"), str):
        return header
    return {**header, "model": {**model, "name": display_name(model["name"])}}
