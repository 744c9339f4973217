"""Answers and scores, in a file of JSON lines that a killed run is continued from.

A header says what is measured; then come a line for each method when it is first used, and a line
per answer. What a killed run left of its last line is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_middle.errors import FileFormatError
from rag_middle.files import expanded, reason
from rag_middle.thinking import answer_after_thinking
from rag_middle.wording import shortened

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
        answer: what the model wrote; None where its log-likelihood was measured.
        prompt_tokens: of the prompt as sent.
        applied: whether the method could act on this prompt.
        withheld: a server's content filter withheld the answer, or its end.
        unfinished: it was cut within the thinking at its beginning, so that it is no answer.
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
    """The answers of one measurement, in memory and, where there is a file, on disk.

    Args:
        path: a file to continue or to begin; None keeps records in memory.
        identity: what is measured, JSON-ready; the file's header must say the same.

    Raises:
        FileFormatError: the file holds something else, belongs to another measurement, or cannot
            be written.
    """

    def __init__(self, path: str | Path | None, identity: Mapping[str, Any]) -> None:
        self._path = None if path is None else expanded(path)
        self._records: dict[Key, Record] = {}
        self._methods: dict[str, str] = {}
        if self._path is None:
            return
        header = {"kind": "header", "format": FORMAT, **json.loads(json.dumps(identity))}
        content = self._path.read_bytes() if self._path.exists() else b""
        if content:
            self._load(content, header)
        else:
            self._write([header])

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

    def add(self, records: Iterable[Record]) -> None:
        """Keep records, in the file too."""
        new = {record.key: record for record in records}
        self._write([{"kind": "record", **asdict(record)} for record in new.values()])
        self._records |= new

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._path is None or not lines:
            return
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise FileFormatError(
                f"Records cannot be written to {str(self._path)!r} ({reason(error)}). Free space, "
                "correct the permissions, or write to another file; then run it again to go on."
            ) from error

    def _load(self, content: bytes, header: Mapping[str, Any]) -> None:
        assert self._path is not None
        whole = content[: content.rfind(b"\n") + 1]
        try:
            for number, line in enumerate(whole.splitlines() or [content], start=1):
                fields = json.loads(line)
                if number == 1:
                    _check_header(fields, header, self._path)
                elif fields.pop("kind") == "method":
                    self._methods[fields["label"]] = fields["method"]
                else:
                    record = Record(**fields)
                    self._records[record.key] = record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(
                f"Line {number} of {str(self._path)!r} is no record of a run ({error!r}). Write to "
                "another file, or remove that line to have its question asked again."
            ) from error
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))  # in place: no kill here loses an answer


def _check_header(header: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    there, here = _flat(header), _flat(expected)
    differences = [
        f"{name} is {shortened(repr(there.get(name)), 80)} there and "
        f"{shortened(repr(here.get(name)), 80)} in this run"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]
    if differences:
        raise FileFormatError(
            f"The records in {str(path)!r} belong to another measurement, as line 1 says: "
            f"{'; '.join(differences[:3])}. Write to another file, or remove that one to begin "
            "anew."
        )


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by the names of the innermost fields: ``model.revision``."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat
