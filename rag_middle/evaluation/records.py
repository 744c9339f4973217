"""One record per answer, in an append-only file that a killed run can be continued from.

Lines of JSON: a header that says what is measured, a line for each method when it is first used,
and a line per answer. Only whole lines count: what a killed run left of its last line is cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag_middle.errors import FileFormatError
from rag_middle.evaluation.metrics import METRICS
from rag_middle.files import append, check_appendable, expanded, lock_file, reason
from rag_middle.generation.identity import with_later_digests
from rag_middle.plain_data import parse_json
from rag_middle.thinking import answer_after_thinking
from rag_middle.wording import counted, shortened

FORMAT = 1
_SHOWN = 3  # differences, in a message

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
        answer: what the model wrote; None where its log-likelihood was measured.
        prompt_tokens: of the prompt as sent.
        applied: whether the method could act on this prompt.
        withheld: a server's content filter withheld the answer, or its end. Files have this field
            only where it is true.
        unfinished: it was cut within the thinking at its beginning, so that it is no answer; in
            files likewise.

    Raises:
        TypeError: a field of another type, as damaged files may hold.
    """

    method: str
    condition: str
    item: str
    scores: Mapping[str, float]
    answer: str | None
    prompt_tokens: int
    applied: bool
    withheld: bool = False
    unfinished: bool = False

    def __post_init__(self) -> None:
        names = (self.method, self.condition, self.item)
        well_typed = (
            all(isinstance(name, str) for name in names)
            and isinstance(self.answer, str | None)
            and isinstance(self.scores, Mapping)
            and all(type(score) in (int, float) for score in self.scores.values())
            and type(self.prompt_tokens) is int
            and type(self.applied) is bool
            and type(self.withheld) is bool
            and type(self.unfinished) is bool
        )
        if not well_typed:
            # Not the values, which may be nested deeper than Python writes them.
            types = {each.name: type(getattr(self, each.name)).__name__ for each in fields(self)}
            raise TypeError(f"a field has another type: {shortened(repr(types))}")

    @property
    def key(self) -> Key:
        """What it is the answer to."""
        return self.method, self.condition, self.item

    @property
    def said(self) -> str | None:
        """The answer that is scored: without thinking at its beginning."""
        if self.unfinished:
            return ""
        return self.answer and answer_after_thinking(self.answer)


class Records:
    """The answers of one measurement, in memory and, where there is a file, on disk."""

    def __init__(self, file: FileIO | None = None) -> None:
        self._file = file
        self._records: dict[Key, Record] = {}
        self._methods: dict[str, str] = {}
        #: Why no further questions are asked under a method, by label.
        self.dropped: dict[str, str] = {}

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
            FileFormatError: it stood for another one when earlier records were made.
        """
        earlier = self._methods.get(label)
        if earlier is None:
            self._methods[label] = method
            self._write([{"kind": "method", "label": label, "method": method}])
        elif earlier != method:
            raise FileFormatError(
                f"Earlier records call {earlier} {label!r}; now it is {method}. Give the method "
                "another label, or write to another file."
            )

    def drop(self, label: str, reason: str) -> None:
        """Say that no further questions are asked under a method."""
        self.dropped[label] = reason
        method = self._methods[label]
        self._write([{"kind": "method", "label": label, "method": method, "dropped": reason}])

    def add(self, records: Iterable[Record]) -> None:
        """Keep records; those in a file are on disk when this returns.

        Raises:
            FileFormatError: the file cannot be written; what it holds is whole.
        """
        new = list(records)
        self._write([_as_fields(record) for record in new])
        self.correct(new)

    def correct(self, records: Iterable[Record]) -> None:
        """Take records instead of those that the file holds."""
        self._records.update((record.key, record) for record in records)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        try:
            append(self._file, b"".join(map(_as_line, lines)))
        except OSError as error:
            raise _cannot_write(str(self._file.name), error) from error

    def _load(
        self,
        file: FileIO,
        header: Mapping[str, Any],
        metrics: Sequence[str],
        generated: bool | None,
    ) -> None:
        """Take over what the file holds, or begin it with its header."""
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines:
            if not _as_line(header).startswith(content):
                raise FileFormatError(
                    f"{str(file.name)!r} holds no records. Write to another file, or remove that "
                    "one."
                )
            file.truncate(0)
            self._write([dict(header)])
        for number, line in enumerate(lines, start=1):
            try:
                fields = parse_json(line)
                if number == 1:
                    _check_header(fields, header, file.name)
                elif fields.pop("kind") == "method":
                    label, method = fields["label"], fields["method"]
                    if not isinstance(label, str) or not isinstance(method, str):
                        raise TypeError(f"the method {label!r} is {method!r}")
                    self._methods[label] = method
                    if "dropped" in fields:
                        self.dropped[label] = str(fields["dropped"])
                else:
                    record = Record(**fields)
                    _check_values(record, metrics, generated)
                    self._records[record.key] = record
            except FileFormatError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FileFormatError(
                    f"Line {number} of {str(file.name)!r} is damaged ({error}). Remove that line "
                    "to have its question asked again, or write to another file."
                ) from error
        # The run was killed in the last line. Cut off only now that the file is known to be ours.
        if lines and whole < len(content):
            file.truncate(whole)


@contextmanager
def open_records(
    path: str | Path | None,
    identity: Mapping[str, Any],
    *,
    metrics: Sequence[str] = (),
    generated: bool | None = None,
) -> Iterator[Records]:
    """Records of a measurement, those of an earlier run included.

    Args:
        path: a file to continue or to make; None keeps records in memory.
        identity: what is measured, JSON-ready; the file's header must say the same.
        metrics: names of the scores that every record of the file must have.
        generated: whether records must hold answers (True) or none (False); None takes both.

    Raises:
        FileFormatError: the file is damaged before its last line, belongs to another
            measurement, is in use, or cannot be written.
    """
    if path is None:
        yield Records()
        return
    path = expanded(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_file(path), timeout=0)
        check_appendable(path)
        lock.acquire()
    except Timeout as error:
        raise FileFormatError(
            f"Another run is writing {str(path)!r}. Wait for it, or write to another file."
        ) from error
    except (OSError, ValueError) as error:
        raise _cannot_write(str(path), error) from error
    try:
        try:
            file = path.open("a+b", buffering=0)
        except OSError as error:
            raise _cannot_write(str(path), error) from error
        with file:
            records = Records(file)
            header = {"kind": "header", "format": FORMAT, **json.loads(json.dumps(identity))}
            records._load(file, header, metrics, generated)
            yield records
    finally:
        lock.release()


def _as_line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8")


def _cannot_write(path: str, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"Records cannot be written to {path!r} ({reason(error)}). Free space, correct "
        "the permissions, or write to another file; then run it again to go on."
    )


def _as_fields(record: Record) -> dict[str, Any]:
    fields = {"kind": "record", **asdict(record)}
    for name in ("withheld", "unfinished"):  # so files are those of before there were these
        if not fields[name]:
            del fields[name]
    return fields


def _check_values(record: Record, metrics: Sequence[str], generated: bool | None) -> None:
    """Raise `ValueError` unless a run could have made the record."""
    for name in metrics:
        if name not in record.scores:
            raise ValueError(f"it has no score {name!r}")
    for name, score in record.scores.items():
        low, high = METRICS[name].bounds if name in METRICS else (-1e9, 1e9)
        if not low <= score <= high:  # NaN is in no range
            raise ValueError(f"{name} is {score!r:.24}, which is not from {low:g} to {high:g}")
    if generated is not None and generated is (record.answer is None):
        raise ValueError(f"it has {'no' if generated else 'an'} answer")
    if not 0 <= record.prompt_tokens < 2**63:
        raise ValueError(f"its prompt has {record.prompt_tokens!r:.24} tokens")


def _check_header(header: dict[str, Any], expected: Mapping[str, Any], path: Any) -> None:
    model = with_later_digests(header.get("model"), expected.get("model"))
    differences = list(_differences({**header, "model": model}, expected))
    if differences:
        shown = [
            f"{name} is {shortened(repr(was), 80)} there and {shortened(repr(now), 80)} in this run"
            for name, was, now in differences[:_SHOWN]
        ]
        more = len(differences) - len(shown)
        shown += [f"and {counted(more, 'more difference')}"] if more else []
        raise FileFormatError(
            f"The records in {str(path)!r} belong to another measurement, as line 1 says: "
            f"{'; '.join(shown)}. Write to another file, or remove that one to begin anew."
        )


def _differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Names of the innermost fields that differ (``model.revision``), and both values."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        if was != now:
            yield name, was, now
        return
    for key in {**now, **was}:
        yield from _differences(was.get(key), now.get(key), f"{name}.{key}" if name else str(key))
