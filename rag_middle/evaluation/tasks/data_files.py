"""Data files of every kind that questions are published in: their entries and fields."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_middle.documents import Document
from rag_middle.errors import FileFormatError
from rag_middle.extras import require
from rag_middle.files import open_regular
from rag_middle.plain_data import parse_json
from rag_middle.registry import suggest
from rag_middle.wording import shortened

#: The name of an entry for messages, and its fields.
Entry = tuple[str, dict[str, Any]]


def read_entries(path: str | Path) -> Iterator[Entry]:
    """The entries of a data file, each with its name for messages ("data.json: entry 3").

    JSON lines and a JSON list, both plain or gzipped; ``.csv`` with a line of field names, all
    values texts; ``.parquet``.

    Raises:
        FileFormatError: no such file, or it is damaged, or an entry is no object.
        MissingExtraError: a Parquet file, and pyarrow is not installed.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    text = read_text(path)
    if path.suffix == ".csv":
        yield from _csv_rows(path, text)
    elif text.lstrip()[:1] == "[":
        yield from _listed(path, text)
    else:
        yield from _parsed_lines(path.name, text)


def read_lines(path: str | Path) -> Iterator[Entry]:
    """The objects of a JSON-lines file, each with its name for messages ("data.jsonl:3").

    Raises:
        FileFormatError: no such file, no UTF-8, no JSON, or something else than objects.
    """
    yield from _parsed_lines(Path(path).name, read_text(path))


def read_text(path: str | Path) -> str:
    """The text of a file, plain or gzipped.

    Raises:
        FileFormatError: no such file, or no UTF-8.
    """
    path = Path(path)
    try:
        return _unpacked(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"The data file {str(path)!r} is not UTF-8 text ({error.reason} at byte "
            f"{error.start}). Save it as UTF-8."
        ) from error
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise FileFormatError(
            f"The data file {str(path)!r} cannot be read ({error}). Pass the path of a file of "
            "JSON lines, plain or gzipped."
        ) from error


def _unpacked(path: Path) -> bytes:
    with open_regular(path) as file:
        content = file.read()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _parsed_lines(file: str, text: str) -> Iterator[Entry]:
    """As `read_lines`, of the text of a file of that name."""
    # Not splitlines(): JSON strings may hold other line separators than these.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name = f"{file}:{number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            raise FileFormatError(
                f"{name} is not valid JSON: {error}. Write one JSON object per line."
            ) from error
        if not isinstance(content, dict):
            raise FileFormatError(
                f"{name} should be a JSON object, got {type(content).__name__}. Write one object "
                "per line."
            )
        yield name, content


def first_of(read: Callable[[str | Path], Iterator[Entry]], path: str | Path) -> Entry:
    """The first entry of a file, as `read_lines` or `read_entries` gives it.

    Raises:
        FileFormatError: it has none; and what `read` raises.
    """
    for entry in read(path):
        return entry
    raise FileFormatError(f"The data file {str(path)!r} is empty. Write one JSON object per line.")


def without_repeats(
    documents: Sequence[Document], golds: Sequence[int]
) -> tuple[list[Document], list[int]]:
    """The documents without others that have a gold one's text, and where the gold ones are then.

    A gold document that the others hold too would stand at two positions at once. As for
    questions, spaces and case make no difference.
    """
    texts = [" ".join(document.text.split()).casefold() for document in documents]
    gold_texts = {texts[at] for at in golds}
    kept = [at for at, text in enumerate(texts) if at in golds or text not in gold_texts]
    return [documents[at] for at in kept], [kept.index(at) for at in golds]


def _listed(path: Path, text: str) -> Iterator[Entry]:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise FileFormatError(
            f"{path.name} begins as a JSON list, and is not valid JSON: {error}."
        ) from error
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise FileFormatError(
                f"{path.name}: entry {number} should be a JSON object, got {type(entry).__name__}."
            )
        yield f"{path.name}: entry {number}", entry


def _csv_rows(path: Path, text: str) -> Iterator[Entry]:
    before = csv.field_size_limit(2**31 - 1)  # of the process; a field here is a whole context
    rows = csv.DictReader(io.StringIO(text), strict=True)
    number = 0
    try:
        _check_names(path, rows.fieldnames or ())
        for number, row in enumerate(rows, start=1):
            if None in row or None in row.values():
                raise FileFormatError(
                    f"{path.name}: row {number} has not as many fields as the first line names "
                    f"({', '.join(rows.fieldnames or ())})."
                )
            yield f"{path.name}: row {number}", row
    except csv.Error as error:
        raise FileFormatError(
            f"{path.name}: row {number + 1} is not valid CSV ({error}). Quote fields that hold "
            "commas, quotes or line ends."
        ) from error
    finally:
        csv.field_size_limit(before)


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `FileFormatError` if two columns have one name: which one counts is not said."""
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        raise FileFormatError(
            f"{path.name} has more than one column {shortened(repr(repeated[0]))}. Rename one, or "
            "remove it."
        )


def _parquet_rows(path: Path) -> Iterator[Entry]:
    parquet = require(
        "pyarrow.parquet", package="pyarrow", what="Reading Parquet files", extra="eval"
    )
    from pyarrow import ArrowException

    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError, ArrowException) as error:
        reason = json.dumps(str(error).partition("\n")[0])
        raise FileFormatError(
            f"The data file {str(path)!r} cannot be read as Parquet ({reason})."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"{path.name}: row {number}", row


def get_field(content: Mapping[str, Any], name: str, kind: type, line: str) -> Any:
    """The field `name` of a line, which must be of type `kind`; `line` names it in messages.

    Raises:
        FileFormatError: it is missing, or something else.
    """
    if name not in content:
        raise FileFormatError(
            f"{line} has no field {name!r}.{suggest(name, content)} Fields: "
            f"{', '.join(content) or 'none'}."
        )
    value = content[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FileFormatError(
            f"{line}: {name!r} should be a {kind.__name__}, got {type(value).__name__}."
        )
    return value


def as_answers(value: Any, line: str) -> tuple[str, ...]:
    """One answer or several.

    Raises:
        FileFormatError: none, or something else than texts.
    """
    answers = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise FileFormatError(
            f"{line}: the answers should be at least one text that is not empty, got {value!r}."
        )
    return answers


def as_document(value: Any, line: str) -> Document:
    """A text, or an object with ``text`` and perhaps ``title`` and ``id``.

    Raises:
        FileFormatError: something else.
    """
    if isinstance(value, str):
        return Document(value)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise FileFormatError(
            f"{line}: a document should be a text, or an object with 'text' and perhaps 'title' "
            f"and 'id'; got {type(value).__name__}."
        )
    title, identifier = value.get("title"), value.get("id")
    return Document(
        value["text"],
        title=None if title is None else str(title),
        id=None if identifier is None else str(identifier),
    )


def answers_of(content: Mapping[str, Any], line: str) -> tuple[str, ...]:
    """The field ``answers`` of a line, or ``answer``.

    Raises:
        FileFormatError: it has neither, or something else than texts.
    """
    if "answers" not in content and "answer" not in content:
        get_field(content, "answers", list, line)  # raises, with the nearest name
    return as_answers(content.get("answers", content.get("answer")), line)


def flagged(values: object, flag: str) -> list[int]:
    """0-based positions of the objects in a list whose field of that name is true."""
    return [
        index
        for index, value in enumerate(values if isinstance(values, list) else [])
        if isinstance(value, dict) and value.get(flag) is True
    ]
