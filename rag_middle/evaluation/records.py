"""Answers and scores, in a file of JSON lines that a killed run is continued from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rag_middle.errors import FileFormatError
from rag_middle.files import expanded, reason
from rag_middle.thinking import answer_after_thinking
from rag_middle.wording import shortened

FORMAT = 1

#: Method label, condition name, item id.
Key = tuple[str, str, str]


class Journal:
    """JSON lines that a run adds to, and is continued from.

    The first line says what they are about. What a killed run left of its last line is cut off.

    Args:
        path: a file to continue or to begin; None writes nothing.
        identity: what the lines are about, JSON-ready; the file's first line must say the same.
        read: called with each line that is there already, parsed.

    Raises:
        FileFormatError: the file holds something else, is about something else, or cannot be
            written.
    """

    def __init__(
        self, path: str | Path | None, identity: Mapping[str, Any], read: Callable[[Any], None]
    ) -> None:
        self._path = None if path is None else expanded(path)
        if self._path is None:
            return
        header = {"kind": "header", "format": FORMAT, **json.loads(json.dumps(identity))}
        content = self._path.read_bytes() if self._path.exists() else b""
        if not content:
            self.add([header])
            return
        whole = content[: content.rfind(b"\n") + 1]
        try:
            for number, line in enumerate(whole.splitlines() or [content], start=1):
                fields = json.loads(line)
                if number == 1:
                    _check_header(fields, header, self._path)
                else:
                    read(fields)
        except FileFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(
                f"Line {number} of {str(self._path)!r} is no record of a run ({error!r}). Write to "
                "another file, or remove that line to have it computed again."
            ) from error
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))  # in place: no kill here loses a line

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write lines.

        Raises:
            FileFormatError: the file cannot be written.
        """
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        if self._path is None or not text:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise FileFormatError(
                f"Records cannot be written to {str(self._path)!r} ({reason(error)}). Free space, "
                "correct the permissions, or write to another place; then run it again to go on."
            ) from error


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
            f"The records in {str(path)!r} belong to another run, as line 1 says: "
            f"{'; '.join(differences[:3])}. Write to another place (out, --out), or remove "
            "that file to begin anew."
        )


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by the names of the innermost fields: ``model.revision``."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
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

    @property
    def missing(self) -> Literal["withheld", "unfinished", "empty", ""]:
        """Why there is no answer; empty where there is one."""
        if self.withheld:
            return "withheld"
        if self.unfinished:
            return "unfinished"
        return "empty" if self.said == "" else ""

    @property
    def shown(self) -> str | None:
        """What was written, for people."""
        if self.answer is None:
            return None
        notes = {"withheld": " (withheld)", "unfinished": " (cut within thinking)"}
        text = self.answer if self.withheld else self.answer or "(nothing)"
        return text + notes.get(self.missing, "")


class Records(dict[Key, AnswerRecord]):
    """The answers of one measurement, in memory and, where there is a file, on disk.

    Written by `add` only, which knows of the file.

    Args:
        path, identity: as for `Journal`; a line is a method when it is first used, or an answer.

    Raises:
        FileFormatError: as `Journal`.
    """

    def __init__(self, path: str | Path | None, identity: Mapping[str, Any]) -> None:
        super().__init__()
        self._methods: dict[str, str] = {}
        self._journal = Journal(path, identity, self._read)

    def declare(self, label: str, method: str) -> None:
        """Say which method a label stands for.

        Raises:
            FileFormatError: it stood for another one when earlier records were made.
        """
        earlier = self._methods.get(label)
        if earlier is None:
            self._methods[label] = method
            self._journal.add([{"kind": "method", "label": label, "method": method}])
        elif earlier != method:
            raise FileFormatError(
                f"Earlier records call {earlier} {label!r}; now it is {method}. Give the method "
                "another label, or write to another file."
            )

    def add(self, records: Iterable[AnswerRecord]) -> None:
        """Keep records, in the file too."""
        new = {record.key: record for record in records}
        self._journal.add({"kind": "record", **asdict(record)} for record in new.values())
        self.update(new)

    def _read(self, fields: dict[str, Any]) -> None:
        if fields.pop("kind") == "method":
            self._methods[fields["label"]] = fields["method"]
        else:
            record = AnswerRecord(**fields)
            self[record.key] = record
