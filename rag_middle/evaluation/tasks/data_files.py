"""Data files of every kind that questions are published in: their entries, one by one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_middle.errors import EvaluationDataError, MissingExtraError
from rag_middle.evaluation.tasks.json_lines import parsed_lines, read_text
from rag_middle.plain_data import parse_json

__all__ = ["first_entry", "read_entries"]


def read_entries(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a data file, each with its name for messages ("data.json: entry 3").

    JSON lines and a JSON list, both plain or gzipped; ``.csv`` with a line of field names, all
    values texts; ``.parquet``.

    Raises:
        EvaluationDataError: no such file, or it is damaged, or an entry is no object.
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
        yield from parsed_lines(path.name, text)


def first_entry(path: str | Path) -> tuple[str, dict[str, Any]]:
    """The first entry of a file, with its name for messages.

    Raises:
        EvaluationDataError, MissingExtraError: as `read_entries`, or the file has no entries.
    """
    for entry in read_entries(path):
        return entry
    raise EvaluationDataError(
        f"The data file {str(path)!r} is empty. Write one JSON object per line."
    )


def _listed(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise EvaluationDataError(
            f"{path.name} begins as a JSON list, and is not valid JSON: {error}."
        ) from error
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise EvaluationDataError(
                f"{path.name}: entry {number} should be a JSON object, got {type(entry).__name__}."
            )
        yield f"{path.name}: entry {number}", entry


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    before = csv.field_size_limit(2**31 - 1)  # of the process; a field here is a whole context
    rows = csv.DictReader(io.StringIO(text), strict=True)
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            if None in row or None in row.values():
                raise EvaluationDataError(
                    f"{path.name}: row {number} has not as many fields as the first line names "
                    f"({', '.join(rows.fieldnames or ())})."
                )
            yield f"{path.name}: row {number}", row
    except csv.Error as error:
        raise EvaluationDataError(
            f"{path.name}: row {number + 1} is not valid CSV ({error}). Quote fields that hold "
            "commas, quotes or line ends."
        ) from error
    finally:
        csv.field_size_limit(before)


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("Reading Parquet files", package="pyarrow", extra="eval") from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=64):  # rows may be megabytes each
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path.name}: row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        reason = json.dumps(str(error).partition("\n")[0])
        raise EvaluationDataError(
            f"The data file {str(path)!r} cannot be read as Parquet ({reason})."
        ) from error
