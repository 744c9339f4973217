"""What a search has found out survives whatever happens to it."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from rag_middle.calibration import Outcome
from rag_middle.calibration.journal import open_journal
from rag_middle.errors import FileFormatError

IDENTITY = {"seed": 1, "search": {"factors": (0.5, 1.0)}}
FIRST = Outcome(score=0.1 + 0.2, right="011", log_likelihood=-1 / 3)
SECOND = Outcome(score=0.5, complete=False, right="10")


def written(path: Path) -> Path:
    with open_journal(path, IDENTITY) as journal:
        journal.add("a", FIRST)
        journal.add("b", SECOND)
    return path


def test_what_was_added_is_there_again_to_the_last_bit(tmp_path: Path) -> None:
    with open_journal(written(tmp_path / "s.state"), IDENTITY) as journal:
        assert (journal["a"], journal["b"], len(journal), "c" in journal) == (
            FIRST,
            SECOND,
            2,
            False,
        )


@pytest.mark.parametrize("content", [b'{"my": "data"}', b'{"a": 1}\n{"b": 2}', b"notes"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.state"
    path.write_bytes(content)
    with pytest.raises(FileFormatError), open_journal(path, IDENTITY):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path, target: str | None) -> None:
    path = tmp_path / "s.state"
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    with pytest.raises(FileFormatError, match="no regular file"), open_journal(path, {}):
        pass


def test_a_search_killed_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "s.state"
    with open_journal(path, IDENTITY):
        pass
    path.write_bytes(path.read_bytes()[:20])
    with open_journal(path, IDENTITY) as journal:
        assert len(journal) == 0
    assert len(path.read_bytes()) > 20


def test_a_model_with_another_adapter_is_refused_and_one_without_digests_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.state"
    model = {"id": "m", "adapters_sha256": "a", "generation": "b"}
    with open_journal(path, {**IDENTITY, "model": {"id": "m"}}) as journal:  # as the first wrote it
        journal.add("a", FIRST)
    with open_journal(path, {**IDENTITY, "model": model}) as journal:
        assert journal["a"] == FIRST
    path.unlink()
    with open_journal(path, {**IDENTITY, "model": model}):
        pass
    for field in ("adapters_sha256", "generation"):
        with (
            pytest.raises(FileFormatError, match="it differs in model"),
            open_journal(path, {**IDENTITY, "model": {**model, field: "c"}}),
        ):
            pass


def test_searches_side_by_side_do_not_share_a_lock(tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").write_text("locked")
    with (
        open_journal(tmp_path / "run.a", IDENTITY),
        open_journal(tmp_path / "run.b", IDENTITY),
        open_journal(tmp_path / "poetry.state", IDENTITY),
    ):
        assert (tmp_path / "poetry.lock").read_text() == "locked"
    with open_journal(written(tmp_path / "own.lock"), IDENTITY) as journal:
        assert len(journal) == 2


def test_every_outcome_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.state"
    with open_journal(path, IDENTITY) as journal:
        journal.add("a", FIRST)
        assert b'"a"' in path.read_bytes()


def test_cut_anywhere_the_whole_lines_remain(tmp_path: Path) -> None:
    path = written(tmp_path / "s.state")
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        with open_journal(path, IDENTITY) as journal:
            assert len(journal) == max(0, whole - 1)
            journal.add("c", SECOND)
        with open_journal(path, IDENTITY) as journal:
            assert journal["c"] == SECOND


def test_another_search_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "s.state")
    before = path.read_bytes()
    with (
        pytest.raises(FileFormatError, match="differs in seed"),
        open_journal(path, {**IDENTITY, "seed": 2}),
    ):
        pass
    assert path.read_bytes() == before


def test_the_state_of_an_earlier_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "s.state")
    lines = path.read_bytes().splitlines(keepends=True)
    text = json.dumps({"identity": IDENTITY}).encode()  # as it was before formats had a number
    path.write_bytes(b"%08x " % zlib.crc32(text) + text + b"\n" + b"".join(lines[1:]))
    before = path.read_bytes()
    with (
        pytest.raises(FileFormatError, match=r"another version of rag-middle \(format 1;"),
        open_journal(path, IDENTITY),
    ):
        pass
    assert path.read_bytes() == before


def test_a_flipped_digit_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "s.state")
    path.write_bytes(path.read_bytes().replace(b'"011"', b'"111"'))
    with (
        pytest.raises(FileFormatError, match=r"damaged .*checksum"),
        open_journal(path, IDENTITY),
    ):
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("score", float("nan")),
        ("score", float("inf")),
        ("score", 10**400),
        ("log_likelihood", float("nan")),
        ("log_likelihood", -float("inf")),
        ("right", "012"),
        ("right", "é11"),
    ],
)
def test_impossible_outcomes_with_the_right_checksum_are_noticed(
    tmp_path: Path, field: str, value: object
) -> None:
    path = written(tmp_path / "s.state")
    header = path.read_bytes().splitlines(keepends=True)[0]
    text = json.dumps({"key": "a", "outcome": {"score": 0.5, field: value}}).encode()
    path.write_bytes(header + b"%08x " % zlib.crc32(text) + text + b"\n")
    with pytest.raises(FileFormatError, match="damaged"), open_journal(path, IDENTITY):
        pass


def test_one_search_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "s.state"
    with (
        open_journal(path, IDENTITY),
        pytest.raises(FileFormatError, match="in use"),
        open_journal(path, IDENTITY),
    ):
        pass
    with open_journal(path, IDENTITY):
        pass  # free again


def test_one_search_at_a_time_also_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.state"
    link.symlink_to("s.state")
    with (
        open_journal(tmp_path / "s.state", IDENTITY),
        pytest.raises(FileFormatError, match="in use"),
        open_journal(link, IDENTITY),
    ):
        pass


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    with open_journal(None, IDENTITY) as journal:
        journal.add("a", FIRST)
        assert journal["a"] == FIRST
    assert list(tmp_path.iterdir()) == []
