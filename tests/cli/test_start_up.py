"""Commands that run no model start without the libraries that models need."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.thorough

#: They take seconds to import, which a listing or a typo should not wait for.
HEAVY = "torch transformers numpy faiss sentence_transformers sklearn matplotlib".split()
COMMANDS = "ask calibrate chat demo diagnose generate index methods serve verify".split()
SCRIPT = """
import contextlib, io, json, sys
from tests.reader import reader_path
from rag_middle.cli import main
heavy, calls = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for call in calls:
    sys.argv = ["rag-middle", *call]
    status, shown = None, io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    imported = [name for name in heavy if name in sys.modules]
    print(json.dumps([status, imported, shown.getvalue()]))
"""


class Outcome(NamedTuple):
    """What one call of the command line came to."""

    status: int
    imported: list[str]
    messages: str


def _run(*calls: Sequence[object]) -> list[Outcome]:
    """Outcomes of calls, one after the other in one process; what one imports stays imported."""
    words = [[str(word) for word in call] for call in calls]
    command = [sys.executable, "-c", SCRIPT, json.dumps(HEAVY), json.dumps(words)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [Outcome(*json.loads(line)) for line in shown.stdout.splitlines()]


def test_what_only_prints_imports_no_deep_learning_library() -> None:
    calls = [
        ("--help",),
        ("--version",),
        *((command, "--help") for command in COMMANDS),
        ("methods",),
        ("methods", "--json"),
        ("methods", "positional_hidden_states"),
    ]
    outcomes = {
        " ".join(call): outcome[:2] for call, outcome in zip(calls, _run(*calls), strict=True)
    }
    assert outcomes == dict.fromkeys(outcomes, (0, []))


def test_damaged_data_is_refused_before_pytorch_is_imported(tmp_path: Path) -> None:
    page, questions = tmp_path / "damaged.pdf", tmp_path / "damaged.jsonl"
    page.write_text("no PDF")
    questions.write_text("{")
    out = ("--out", tmp_path / "out")
    diagnose, index = _run(("diagnose", "--data", questions, *out), ("index", page, *out))
    assert (index.status, diagnose.status) == (2, 2)
    assert "damaged.jsonl' cannot be read" in diagnose.messages
    assert "damaged.pdf: it cannot be read" in index.messages
    assert {*index.imported, *diagnose.imported} <= {"numpy"}


@pytest.mark.slow  # indexes with the real embedder first
def test_an_unchanged_folder_is_found_to_be_so_without_its_embedder(tmp_path: Path) -> None:
    docs, index = tmp_path / "docs", tmp_path / "index"
    docs.mkdir()
    (docs / "note.txt").write_text("Ice floats on water.", encoding="utf-8")
    _run(("index", docs, "--out", index))
    [(status, imported, _)] = _run(("index", docs, "--out", index))
    assert status == 0
    assert not {"torch", "transformers", "sentence_transformers"} & set(imported)
    _run(("index", docs, "--out", index, "--chunk-size", "50"))
    for chunk_size, embedded in ((50, False), (60, True), (None, False)):
        chosen = () if chunk_size is None else ("--chunk-size", chunk_size)
        [(status, imported, shown)] = _run(("index", docs, "--out", index, *chosen))
        assert status == 0, shown
        assert ("transformers" in imported) == embedded
