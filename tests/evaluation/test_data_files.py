"""Questions in JSON lists, CSV and Parquet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from rag_middle.errors import FileFormatError
from rag_middle.evaluation.tasks import task_for_file
from rag_middle.evaluation.tasks.data_files import read_entries


def test_torn_lists_and_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"question": ')
    (tmp_path / "numbers.json").write_text("[1]")
    (tmp_path / "rows.csv").write_text("queries,answer\nonly one\n")
    (tmp_path / "none.csv").write_text("queries,answer\n")
    for name, message in (
        ("list.json", r"list\.json' cannot be read after entry 0 \(Expecting value"),
        ("numbers.json", r"entry 1 should be an object, got int"),
        ("rows.csv", r"row 1 has not as many fields"),
        ("none.csv", "is empty"),
    ):
        with pytest.raises(FileFormatError, match=message):
            task_for_file(tmp_path / name)


@pytest.mark.skipif(not find_spec("pyarrow"), reason="needs pyarrow")
def test_parquet_rows_are_read_as_lines_are(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [{"question": "Where?", "answers": ["Lyon"], "gold": "Lyon.", "distractors": ["No."]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "questions.parquet")
    assert [row for _, row in read_entries(tmp_path / "questions.parquet")] == rows
    assert task_for_file(tmp_path / "questions.parquet").num_questions == 1
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(FileFormatError, match=r"torn\.parquet.*cannot be read after"):
        task_for_file(tmp_path / "torn.parquet")
