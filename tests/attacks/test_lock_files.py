"""A file of the user's that is named like a lock: many versions of filelock would empty it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_middle.calibration.journal import open_journal
from rag_middle.errors import CalibrationStateError, EvaluationRecordsError
from rag_middle.evaluation.records import open_records

CONTENT = b"all that I know\n"


@pytest.mark.parametrize(
    ("name", "take", "error"),
    [
        ("a.jsonl.lock", lambda path: open_records(path / "a.jsonl", {}), EvaluationRecordsError),
        ("a.state.lock", lambda path: open_journal(path / "a.state", {}), CalibrationStateError),
    ],
)
def test_a_lock_file_that_holds_something_is_kept(
    name: str, take: object, error: type[Exception], tmp_path: Path
) -> None:
    assert callable(take)
    lock = tmp_path / name
    lock.write_bytes(CONTENT)
    with pytest.raises(error, match=r"not empty\. Move it away"), take(tmp_path):
        pass
    assert lock.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [name]
    lock.write_bytes(b"")  # what a process of this package leaves
    with take(tmp_path):
        assert lock.read_bytes() == b""
    with take(tmp_path):
        pass
