"""Data files: JSON lines, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_middle.documents import Document
from rag_middle.errors import EvaluationDataError
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest

__all__ = [
    "as_answers",
    "as_document",
    "first_line",
    "get_field",
    "parsed_lines",
    "read_lines",
    "read_text",
]


def read_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its name for messages ("data.jsonl:3").

    Raises:
        EvaluationDataError: no such file, no UTF-8, no JSON, or something else than objects.
    """
    yield from parsed_lines(Path(path).name, read_text(path))


def read_text(path: str | Path) -> str:
    """The text of a file, plain or gzipped.

    Raises:
        EvaluationDataError: no such file, or no UTF-8.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvaluationDataError(
            f"The data file {str(path)!r} is not UTF-8 text ({error.reason} at byte "
            f"{error.start}). Save it as UTF-8."
        ) from error
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise EvaluationDataError(
            f"The data file {str(path)!r} cannot be read ({error}). Pass the path of a file of "
            "JSON lines, plain or gzipped."
        ) from error


def parsed_lines(file: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `read_lines`, of the text of a file of that name."""
    # Not splitlines(): JSON strings may hold other line separators than these.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name = f"{file}:{number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            raise EvaluationDataError(
                f"{name} is not valid JSON: {error}. Write one JSON object per line."
            ) from error
        if not isinstance(content, dict):
            raise EvaluationDataError(
                f"{name} should be a JSON object, got {type(content).__name__}. Write one object "
                "per line."
            )
        yield name, content


def first_line(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The first object of a file, with its name for messages.

    Raises:
        EvaluationDataError: the file cannot be read or has no lines.
    """
    for line in read_lines(path):
        return line
    raise EvaluationDataError(
        f"The data file {str(path)!r} is empty. Write one JSON object per line."
    )


def get_field(content: Mapping[str, Any], name: str, kind: type, line: str) -> Any:
    """The field `name` of a line, which must be of type `kind`; `line` names it in messages.

    Raises:
        EvaluationDataError: it is missing, or something else.
    """
    if name not in content:
        raise EvaluationDataError(
            f"{line} has no field {name!r}.{suggest(name, content)} Fields: "
            f"{', '.join(content) or 'none'}."
        )
    value = content[name]
    if not isinstance(value, kind):
        raise EvaluationDataError(
            f"{line}: {name!r} should be a {kind.__name__}, got {type(value).__name__}."
        )
    return value


def as_answers(value: Any, line: str) -> tuple[str, ...]:
    """One answer or several.

    Raises:
        EvaluationDataError: none, or something else than texts.
    """
    answers = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise EvaluationDataError(
            f"{line}: the answers should be at least one text that is not empty, got {value!r}."
        )
    return answers


def as_document(value: Any, line: str) -> Document:
    """A text, or an object with ``text`` and perhaps ``title`` and ``id``.

    Raises:
        EvaluationDataError: something else.
    """
    if isinstance(value, str):
        return Document(value)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise EvaluationDataError(
            f"{line}: a document should be a text, or an object with 'text' and perhaps 'title' "
            f"and 'id'; got {type(value).__name__}."
        )
    title, identifier = value.get("title"), value.get("id")
    return Document(
        value["text"],
        title=None if title is None else str(title),
        id=None if identifier is None else str(identifier),
    )
