"""A saved index comes back as it was, or is refused; nothing that happens while saving loses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rag_middle.errors import (
    EmbedderError,
    IndexFormatError,
    IndexLockedError,
    IndexMismatchError,
    IndexWriteError,
    RetrievalConfigError,
)
from rag_middle.retrieval import Chunk, FaissIndex, storage
from rag_middle.retrieval.manifest import is_index_folder
from tests.retrieval.embedding import HashingEmbedder

pytest.importorskip("faiss")
pytest.importorskip("filelock")

ROOT = Path(__file__).parent.parent.parent


def _chunk(id_: str, source: str = "a.txt", **metadata: object) -> Chunk:
    text = f"text of {id_}"
    return Chunk(id=id_, text=text, source=source, title="É", end=len(text), metadata=metadata)


def _index(*ids: str, kind: str = "auto") -> FaissIndex:
    index = FaissIndex(HashingEmbedder(), kind=kind)  # type: ignore[arg-type]
    index.add(_chunk(id_, page=number) for number, id_ in enumerate(ids))
    return index


def _load(folder: Path) -> FaissIndex:
    return FaissIndex.load(folder, HashingEmbedder())


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_an_index_comes_back_as_it_was_and_can_be_changed(tmp_path: Path, kind: str) -> None:
    index = _index(*"abcdef", kind=kind)
    index.delete(["b"])
    index.save(tmp_path / "index")
    loaded = _load(tmp_path / "index")
    assert loaded.chunks == index.chunks
    assert loaded.kind == kind
    assert loaded.search("text of c", 4) == index.search("text of c", 4)

    loaded.delete(["c"])
    loaded.add([_chunk("b")])
    loaded.save(tmp_path / "index")
    again = _load(tmp_path / "index")
    assert [chunk.id for chunk in again.chunks] == list("adefb")
    assert again.search("text of b", 1)[0].chunk.id == "b"


def test_an_empty_index_comes_back(tmp_path: Path) -> None:
    FaissIndex(HashingEmbedder()).save(tmp_path / "index")
    assert len(_load(tmp_path / "index")) == 0


def test_a_folder_holds_one_index_and_nothing_old(tmp_path: Path) -> None:
    index = _index("a")
    index.save(tmp_path)
    index.add([_chunk("b")])
    index.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} <= {
        ".lock",
        "manifest.json",
        manifest["vectors"],
        manifest["chunks"],
    }
    assert (manifest["embedder"], manifest["dimension"], manifest["count"]) == ("hashing", 64, 2)


# Kills


@pytest.mark.slow
def test_a_kill_at_any_step_of_saving_leaves_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    ends = []
    for step in range(40):
        folder = tmp_path / str(step)
        index = _index("a", "b")
        index.add([_chunk("c", source="old.txt")])
        index.save(folder)
        status = subprocess.run(
            [sys.executable, "-m", "tests.retrieval.killed_saver", str(folder), str(step)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
        left = _load(folder)
        ends.append(len(left))
        assert [chunk.id for chunk in left.chunks] == ["a", "b", "c"][: len(left)]
        # The dead process holds no lock, and what it left behind is cleared away.
        left.save(folder)
        assert len(list(folder.iterdir())) == 4
        if status == 0:
            break
        assert status == 9
    assert ends == sorted(ends, reverse=True)
    assert (ends[0], ends[-1]) == (3, 2)
    assert len(ends) > 10  # every kind of step was cut short


def test_a_failure_while_saving_is_told_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = _index("a")
    index.save(tmp_path)
    index.add([_chunk("b")])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(IndexWriteError) as caught:
            index.save(tmp_path)
    assert "(No space left on device). Free space" in str(caught.value)
    assert len(_load(tmp_path)) == 1
    index.save(tmp_path)
    assert len(_load(tmp_path)) == 2


# What is refused


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink])
@pytest.mark.parametrize("pattern", ["vectors-*", "chunks-*"])
def test_a_damaged_file_is_refused(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    _index("a", "b").save(tmp_path)
    [path] = tmp_path.glob(pattern)
    damage(path)
    with pytest.raises(IndexFormatError, match="rebuild=True"):
        _load(tmp_path)


def test_a_truncated_manifest_is_refused(tmp_path: Path) -> None:
    _index("a").save(tmp_path)
    _truncate(tmp_path / "manifest.json")
    with pytest.raises(IndexFormatError, match=r"manifest.json' is damaged .*rebuild=True"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 2, "has format version 2; this version of rag-middle reads version 1"),
        ("format", "other", "of another format"),
        ("metric", "l2", "metric is not inner_product"),
        ("vectors", "../vectors-0123456789abcdef.faiss", "vectors is '../vectors"),
        ("chunks", "/etc/passwd", "chunks is '/etc/passwd'"),
        ("vectors_sha256", "0" * 64, "is damaged"),
        ("kind", "tree", "kind is 'tree'"),
        ("count", -1, "count is -1"),
        ("count", 3, "2 chunks and 2 vectors of length 64; the manifest says 3, 3 and 64"),
        ("dimension", "64", "dimension is '64'"),
        ("surprise", 1, "unexpected keyword argument 'surprise'"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    _index("a", "b").save(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(IndexFormatError, match=message) as caught:
        _load(tmp_path)
    assert "rebuild=True" in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", "[" * 100_000])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(IndexFormatError, match="damaged"):
        _load(tmp_path)


def test_no_index_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match=r"There is no index .*build_index\("):
        _load(tmp_path / "nothing")


@pytest.mark.parametrize("embedder", [HashingEmbedder(name="other"), HashingEmbedder(dimension=32)])
def test_an_index_of_another_embedder_is_refused(tmp_path: Path, embedder: HashingEmbedder) -> None:
    _index("a").save(tmp_path)
    with pytest.raises(IndexMismatchError) as caught:
        FaissIndex.load(tmp_path, embedder)
    assert "was made with the embedder hashing (dimension 64), not with" in str(caught.value)
    assert "embedder='hashing'" in str(caught.value)
    assert "rebuild=True" in str(caught.value)


@pytest.mark.parametrize("now", ["2", None])
@pytest.mark.parametrize("then", ["1", "2", None])
def test_an_index_of_other_weights_is_refused(
    tmp_path: Path, then: str | None, now: str | None
) -> None:
    """Where one of the two says nothing of its weights, the name has to do."""
    index = FaissIndex(HashingEmbedder(fingerprint=then))
    index.add([_chunk("a")])
    index.save(tmp_path)
    if (then, now) == ("1", "2"):
        with pytest.raises(IndexMismatchError, match=r"fingerprint 1, now 2.*rebuild=True"):
            FaissIndex.load(tmp_path, HashingEmbedder(fingerprint=now))
    else:
        assert len(FaissIndex.load(tmp_path, HashingEmbedder(fingerprint=now))) == 1


def test_a_fingerprint_is_a_text(tmp_path: Path) -> None:
    index = FaissIndex(HashingEmbedder(fingerprint=7))  # type: ignore[arg-type]
    with pytest.raises(EmbedderError, match="should be a text that changes with its weights"):
        index.save(tmp_path / "index")


def test_an_index_of_an_earlier_version_says_nothing_of_weights(tmp_path: Path) -> None:
    _index("a").save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["fingerprint"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert len(FaissIndex.load(tmp_path, HashingEmbedder(fingerprint="1"))) == 1


@pytest.mark.parametrize("name", ["manifest.json", "vectors", "chunks"])
@pytest.mark.parametrize("endless", [False, True])
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path, name: str, endless: bool) -> None:
    _index("a").save(tmp_path)
    [path] = tmp_path.glob(f"{name}*")
    path.unlink()
    if endless:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(IndexFormatError, match="no regular file"):
        _load(tmp_path)
    assert is_index_folder(tmp_path) == (name != "manifest.json")


def test_files_of_an_index_may_be_links(tmp_path: Path) -> None:
    """As some stores of data keep them."""
    _index("a").save(tmp_path / "store")
    (tmp_path / "index").mkdir()
    for path in (tmp_path / "store").iterdir():
        (tmp_path / "index" / path.name).symlink_to(path)
    assert is_index_folder(tmp_path / "index")
    assert len(_load(tmp_path / "index")) == 1


# Two writers


def test_another_writer_is_kept_out(tmp_path: Path) -> None:
    _index("a").save(tmp_path)
    refused: list[str] = []

    def save() -> None:
        with pytest.raises(IndexLockedError) as caught:
            _load(tmp_path).save(tmp_path)
        refused.append(str(caught.value))

    with storage.locked(tmp_path):
        other = threading.Thread(target=save)
        other.start()
        other.join()
        _load(tmp_path).save(tmp_path)  # who holds the lock may write
    assert "Another process is writing" in refused[0]
    _load(tmp_path).save(tmp_path)


def test_later_changes_of_another_writer_are_not_overwritten(tmp_path: Path) -> None:
    _index("a").save(tmp_path)
    first, second = _load(tmp_path), _load(tmp_path)
    second.add([_chunk("b")])
    second.save(tmp_path)
    first.add([_chunk("c")])
    with pytest.raises(IndexLockedError, match="later changes"):
        first.save(tmp_path)
    with pytest.raises(IndexLockedError, match="another index"):
        _index("d").save(tmp_path)
    assert [chunk.id for chunk in _load(tmp_path).chunks] == ["a", "b"]
    first.save(tmp_path, overwrite=True)
    assert [chunk.id for chunk in _load(tmp_path).chunks] == ["a", "c"]


def test_a_reader_that_meets_a_writer_reads_the_new_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = _index("a")
    index.save(tmp_path)
    check = storage._check_digest
    met: list[Path] = []

    def meet(path: Path, expected: str) -> None:
        if not met:
            met.append(path)
            index.add([_chunk("b")])
            index.save(tmp_path)
        check(path, expected)

    monkeypatch.setattr(storage, "_check_digest", meet)
    assert [chunk.id for chunk in _load(tmp_path).chunks] == ["a", "b"]


# Where an index can be saved


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "chunks-mine.jsonl").write_text("mine")
    with pytest.raises(IndexWriteError, match=r"holds something else \('chunks-mine.jsonl'\)"):
        _index("a").save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["chunks-mine.jsonl"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(IndexWriteError, match="choose another folder"):
        _index("a").save(tmp_path / "file")


def test_without_permission_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = _index("a")
    index.save(tmp_path)
    index.add([_chunk("b")])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refuse)
        with pytest.raises(IndexWriteError) as caught:
            index.save(tmp_path)
    assert "(Permission denied). Free space, correct the permissions" in str(caught.value)
    assert len(_load(tmp_path)) == 1


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_metadata_that_json_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    index = _index("a")
    index.save(tmp_path)
    index.add([_chunk("b", value=value)])
    with pytest.raises(RetrievalConfigError, match=r"metadata of a chunk of 'a.txt'"):
        index.save(tmp_path)
    assert len(_load(tmp_path)) == 1
