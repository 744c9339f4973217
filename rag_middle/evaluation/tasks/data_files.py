"""Data files of every kind that questions are published in: their entries and fields."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_middle.documents import Document
from rag_middle.errors import FileFormatError
from rag_middle.evaluation.conditions import Item
from rag_middle.extras import require
from rag_middle.registry import suggest


def read_entries(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a data file, each with its name for messages ("data.jsonl:3").

    JSON lines and a JSON list, both plain or gzipped; ``.csv`` with a line of field names, all
    values texts; ``.parquet``.

    Raises:
        FileFormatError: no such file, or it is damaged, or an entry is no object.
        MissingExtraError: a Parquet file, and pyarrow is not installed.
    """
    path, number = Path(path), 0
    if not path.is_file():
        raise FileFormatError(f"There is no data file {str(path)!r}: check the path.")
    try:
        for number, entry in _values(path):
            if not isinstance(entry, dict):
                raise ValueError(f"entry {number} should be an object, got {type(entry).__name__}")
            yield f"{path.name}:{number}", entry
    except (OSError, ValueError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(
            f"The data file {str(path)!r} cannot be read after entry {number} ({error}). Pass JSON "
            "lines or a JSON list in UTF-8, CSV or Parquet."
        ) from error


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    """What a file holds, by number of line or entry."""
    if path.suffix == ".parquet":
        parquet = require(
            "pyarrow.parquet", package="pyarrow", what="Reading Parquet files", extra="eval"
        )
        yield from enumerate(parquet.read_table(path).to_pylist(), start=1)
        return
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    text = content.decode("utf-8-sig")
    if path.suffix == ".csv":
        csv.field_size_limit(2**31 - 1)  # a field may be a whole context
        for number, row in enumerate(csv.DictReader(io.StringIO(text), strict=True), start=1):
            if None in row or None in row.values():
                raise ValueError(f"row {number} has not as many fields as the first line names")
            yield number, row
    elif text.lstrip()[:1] == "[":
        yield from enumerate(json.loads(text), start=1)
    else:
        # Not splitlines(): JSON strings may hold other line separators than these.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield number, json.loads(line)


def first_entry(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The first entry of a file, with its name for messages.

    Raises:
        FileFormatError: it has none, or cannot be read.
    """
    for entry in read_entries(path):
        return entry
    raise FileFormatError(f"The data file {str(path)!r} is empty. Write one JSON object per line.")


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
    if not isinstance(value, kind) or isinstance(value, bool):
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


def answers_of(content: Mapping[str, Any], line: str) -> tuple[str, ...]:
    """The field ``answers`` of a line, or ``answer``.

    Raises:
        FileFormatError: it has neither, or something else than texts.
    """
    if "answer" in content:
        return as_answers(content["answer"], line)
    return as_answers(get_field(content, "answers", object, line), line)


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
    title, identifier = (None if (v := value.get(n)) is None else str(v) for n in ("title", "id"))
    return Document(value["text"], title=title, id=identifier)


def read_questions(path: str | Path, shown: Callable[[Document], Document]) -> list[Item]:
    """The questions of a file, at least one, with the documents that it gives them.

    Their `details` have ``nearest``: 0-based indices of other lines, whose gold documents are most
    like the question.

    Args:
        path: of the file.
        shown: a document as the prompt shows it.

    Raises:
        FileFormatError: the file or a line of it cannot be read.
    """
    first_entry(path)
    items = []
    for index, (line, content) in enumerate(read_entries(path)):
        documents, gold_position = documents_of(content, line)
        gold, *others = map(shown, [documents.pop(gold_position), *documents])
        items.append(
            Item(
                id=f"{index}",
                question=get_field(content, "question", str, line),
                answers=answers_of(content, line),
                gold=gold,
                others=tuple(others),
                gold_position=gold_position,
                details={"nearest": content.get("nearest") or ()},
            )
        )
    return items


def documents_of(content: Mapping[str, Any], line: str) -> tuple[list[Document], int]:
    """The documents of a line, and the 0-based position of the gold one.

    A line lists them in one of these forms; a document is as for `as_document`::

        {"documents": [...], "gold": 3}
        {"documents": [{"text": ..., "gold": true}, ...]}
        {"ctxs": [{"text": ..., "isgold": true}, ...]}   of the Lost in the Middle benchmark
        {"gold": ..., "distractors": [...]}
        {"title": ..., "text": ...}                      the gold document itself

    Others that repeat the gold document are left out, as it would stand at two positions at once;
    spaces and case make no difference.

    Raises:
        FileFormatError: it has none of them, or names not one gold document.
    """
    if "ctxs" in content or "documents" in content:
        name, flag = ("ctxs", "isgold") if "ctxs" in content else ("documents", "gold")
        values = get_field(content, name, list, line)
        flagged = [at for at, v in enumerate(values) if isinstance(v, dict) and v.get(flag) is True]
        golds = content.get("gold", flagged) if flag == "gold" else flagged
        golds = golds if isinstance(golds, list) else [golds]
        if len(golds) != 1 or type(golds[0]) is not int or not 0 <= golds[0] < len(values):
            raise FileFormatError(
                f"{line} should say which one of its {len(values)} {name!r} answers the question: "
                f"'gold' with a 0-based position, or {flag!r}: true in it; got {golds!r}."
            )
        gold = golds[0]
    elif "gold" in content or "text" in content:
        own = {name: content.get(name) for name in ("text", "title", "id")}
        distractors = {"distractors": content.get("distractors") or []}
        others = get_field(distractors, "distractors", list, line)
        values, gold = [content.get("gold", own), *others], 0
    else:
        raise FileFormatError(
            f"{line} names no gold document: give 'gold' (a document), or 'documents' and "
            "'gold' (a 0-based position), or 'text'."
        )
    documents = [as_document(value, line) for value in values]
    texts = [" ".join(document.text.split()).casefold() for document in documents]
    kept = [at for at, text in enumerate(texts) if at == gold or text != texts[gold]]
    return [documents[at] for at in kept], kept.index(gold)
