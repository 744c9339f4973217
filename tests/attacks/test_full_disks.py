"""A disk that fills up at any byte, or cannot be written: one line, and what was there is whole."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rag_middle import RagMiddleError, RagMiddleModel
from rag_middle.calibration import Outcome
from rag_middle.calibration.journal import open_journal
from rag_middle.calibration.plots import plot_channels
from rag_middle.evaluation import Measurement, diagnose, write_report
from rag_middle.evaluation.records import Record, open_records
from rag_middle.files import write_files
from rag_middle.methods.moice.kernels import ExpertGate
from rag_middle.methods.moice.routers import ExpertRouters
from rag_middle.profiles import read_profile, write_profile
from rag_middle.retrieval import Chunk, FaissIndex
from tests.attacks.hostile import report, tries
from tests.evaluation.fake_models import fake_reader
from tests.reader import READER_PROFILE
from tests.reader.questions import InventedDocuments
from tests.retrieval.embedding import HashingEmbedder
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

pytest.importorskip("faiss")
pytest.importorskip("matplotlib")

Write = Callable[[Path, int], None]
"""Write state `n` into a folder, over state ``n - 1`` if that is there."""


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: a write that would ends in an OSError, as on a full disk.

    Writers in other languages (faiss, safetensors) meet it too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def index(folder: Path, number: int) -> None:
    made = FaissIndex(HashingEmbedder())
    made.add(
        Chunk(id=str(at), text=f"text {at} " * 20, source="a.txt") for at in range(3 * number + 3)
    )
    made.save(folder / "index")


def check_index(folder: Path, state: int) -> None:
    assert len(FaissIndex.load(folder / "index", HashingEmbedder())) == 3 * state + 3


def records(folder: Path, number: int) -> None:
    with open_records(folder / "records" / "records.jsonl", {"model": "a"}) as kept:
        kept.declare("none", "NoMethod()")
        answers = (
            Record(
                method="none",
                condition=f"at {number}",
                item=str(item),
                scores={"exact": 1.0},
                answer="é" * 50,
                prompt_tokens=9,
                applied=True,
            )
            for item in range(3)
        )
        kept.add(answer for answer in answers if answer.key not in kept)


def journal(folder: Path, number: int) -> None:
    with open_journal(folder / "search" / "lpes.state", {"seed": 1}) as kept:
        if f"candidate {number}" not in kept:
            kept.add(f"candidate {number}", Outcome(score=0.5, right="01" * 50))


def profile(folder: Path, number: int) -> None:
    fitted = read_profile(READER_PROFILE)
    write_profile(replace(fitted, scores={"after": float(number)}), folder / "lpes.json")


def files(folder: Path, number: int) -> None:
    contents = {"a.html": b"a" * 300 * (number + 1), "b.png": b"b" * 900 * (number + 1)}
    write_files(folder / "out", contents)


def plot(folder: Path, number: int) -> None:
    channels = [{"channel": 0, "layers": [0], "smoothness": 0.1 + number}]
    plot_channels(torch.zeros(1, 5, 2), channels, folder / "channels.png")


def routers(folder: Path, number: int) -> None:
    made = ExpertRouters(base_factors=(1.0, 2.0), gates={0: gate(number)})
    made.save(folder / "routers")


def gate(number: int) -> ExpertGate:
    shapes = ((2, 8), (2, 2), (2, 8))
    return ExpertGate(*(torch.full(shape, float(number)) for shape in shapes))


@pytest.fixture(scope="module")
def page() -> Write:
    """The report of a diagnosis."""
    tokenizer = byte_level_bpe()
    network = build("reports", tiny(LlamaConfig, vocab_size=len(tokenizer)), "eager")
    task = InventedDocuments(documents=4)
    fake = fake_reader(RagMiddleModel(network, tokenizer), task, lambda m, at, d: 0.5)
    found = diagnose(fake, task, ("pine",), Measurement(limit=4, orders=0))

    def write(folder: Path, number: int) -> None:
        write_report(found, folder / "report", command=f"state {number} " * 20)

    return write


WRITERS = (index, records, journal, profile, files, plot, routers)
UNREPEATABLE = (index, plot)  # pictures and faiss files differ in bytes that mean nothing


@dataclass(frozen=True)
class _Folder:
    path: Path

    def contents(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.path).as_posix(): path.read_bytes()
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not path.name.endswith(".lock")
        }


def attack(write: Write, tmp_path: Path, steps: int, repeatable: bool) -> int:
    """Fill the disk at several places of what is written; how often that was noticed."""
    whole = _Folder(tmp_path / "whole")
    whole.path.mkdir()
    write(whole.path, 0)
    write(whole.path, 1)
    largest = max(map(len, whole.contents().values()))
    noticed = 0
    for limit in sorted({largest * at // steps for at in range(steps)} | {largest - 1}):
        for state in (0, 1):
            folder = _Folder(tmp_path / f"{limit} {state}")
            folder.path.mkdir()
            if state:
                write(folder.path, 0)
            before = folder.contents()
            with disk_full_after(limit):
                message = refusal(write, folder.path, state)
            if write is index and (state or message is None):
                check_index(folder.path, state if message is None else 0)
            if message is not None:
                noticed += 1
                assert "\n" not in message
                assert "ree space" in message
                left = folder.contents()
                assert before.keys() <= left.keys()
                assert all(kept(name, before.get(name, b""), left[name]) for name in left), limit
                write(folder.path, state)  # there is space again
            if not state:
                write(folder.path, 1)
            assert len(folder.contents()) == len(whole.contents())
            assert not repeatable or folder.contents() == whole.contents()
    assert noticed
    return noticed


def refusal(write: Write, folder: Path, state: int) -> str | None:
    try:
        write(folder, state)
    except RagMiddleError as error:
        return str(error)
    return None


def kept(name: str, before: bytes, after: bytes) -> bool:
    """Records and journals keep their whole lines and may have more; all else is as it was."""
    if name.endswith((".jsonl", ".state")) and "chunks-" not in name:
        return after.startswith(before) and after[-1:] in (b"", b"\n")
    return after == before


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.one_in(3)
def test_a_full_disk_costs_nothing_that_was_saved(write: Write, tmp_path: Path) -> None:
    steps = 1 if write is plot else tries(4)
    full = attack(write, tmp_path, steps, write not in UNREPEATABLE)
    report(f"{write.__name__}: {full} times a full disk")


@pytest.mark.slow  # starts a process that imports everything again
def test_a_full_disk_costs_no_report(page: Write, tmp_path: Path) -> None:
    report(f"page: {attack(page, tmp_path, 1, False)} times a full disk")


def test_what_a_killed_writer_left_is_removed_an_hour_later(tmp_path: Path) -> None:
    old, new, another = (tmp_path / name for name in (".a[1].json.7", ".a[1].json.8", ".a1.json.7"))
    for path in (old, new, another):
        path.write_text("half")
    for path in (old, another):
        os.utime(path, (0, 0))
    write_files(tmp_path, {"a[1].json": b"whole"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [another.name, new.name, "a[1].json"]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_folder_that_cannot_be_written_is_named(write: Write, tmp_path: Path) -> None:
    """A file where the folder should be, which not even root can write into."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(RagMiddleError, match="blocked") as raised:
        write(blocked, 0)
    assert "\n" not in str(raised.value)
    assert blocked.read_text() == "a file"
