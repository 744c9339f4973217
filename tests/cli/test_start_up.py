"""Commands that run no model start without the libraries that models need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: They take seconds to import, which a listing or a typo should not wait for.
HEAVY = ("torch", "transformers", "numpy", "faiss", "sentence_transformers", "matplotlib")
COMMANDS = (
    "ask",
    "calibrate",
    "chat",
    "demo",
    "diagnose",
    "generate",
    "index",
    "methods",
    "verify",
)
SCRIPT = """
import json, sys
from rag_middle.cli import main
sys.argv = ["rag-middle", *sys.argv[2:]]
try:
    main()
except SystemExit as ended:
    heavy = json.loads(sys.orig_argv[-len(sys.argv)])
    imported = [name for name in heavy if name in sys.modules]
    print(json.dumps({"status": ended.code or 0, "imported": imported}), file=sys.stderr)
"""


def _run(*arguments: object) -> tuple[int, list[str], str]:
    """Exit status, heavy modules imported on the way, and standard error."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(HEAVY), *map(str, arguments)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    *messages, last = shown.stderr.splitlines()
    facts = json.loads(last)
    return facts["status"], facts["imported"], "\n".join(messages)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        *((command, "--help") for command in COMMANDS),
        ("methods",),
        ("methods", "--json"),
        ("methods", "positional_hidden_states"),
    ],
    ids=" ".join,
)
def test_what_only_prints_imports_no_deep_learning_library(arguments: tuple[str, ...]) -> None:
    assert _run(*arguments)[:2] == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("genrate",), "Did you mean 'generate'?"),
        (("methods", "mspoe"), "Did you mean 'ms_poe'?"),
        (("generate", "-m", "x", "-p", "FILE", "--method", "pinee"), "Did you mean 'pine'?"),
        (("generate", "-m", "x", "-p", "FILE", "--method", "lpes"), "needs factors"),
        (("generate", "-m", "x", "-p", "FILE", "--method", "siw", "-o", "a=1"), "no option 'a'"),
        (("generate", "-m", "x", "-p", "MISSING"), "MISSING"),
        (("ask", "Why?", "--docs", "FOLDER", "--method", "pinee"), "Did you mean 'pine'?"),
        (("ask", "Why?", "--docs", "MISSING"), "MISSING"),
        (("ask", "Why?"), "--docs PATH"),
        (("chat", "--docs", "FOLDER", "--method", "lpes"), "needs factors"),
        (("index", "MISSING"), "MISSING"),
        (("diagnose", "--methods", "pine,mspoe", "--out", "OUT"), "Did you mean 'ms_poe'?"),
        (("diagnose", "--data", "MISSING", "--out", "OUT"), "MISSING"),
        (("calibrate", "--method", "lpez", "--out", "OUT"), "lpez"),
        (("verify", "--method", "pinee"), "Did you mean 'pine'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_refused_before_a_model_is_needed_is_refused_at_once(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    paths = {name: tmp_path / name for name in ("FILE", "FOLDER", "MISSING", "OUT")}
    paths["FILE"].write_text("Read [[rm:doc]]this[[/rm:doc]].", encoding="utf-8")
    paths["FOLDER"].mkdir()
    (paths["FOLDER"] / "note.txt").write_text("Ice floats.", encoding="utf-8")
    status, imported, shown = _run(*(paths.get(word, word) for word in arguments))
    assert status == 2
    assert message in shown
    assert imported == []


@pytest.mark.slow  # indexes with the real embedder first
def test_an_unchanged_folder_is_found_to_be_so_without_its_embedder(tmp_path: Path) -> None:
    for extra in ("faiss", "filelock", "langchain_text_splitters", "sentence_transformers"):
        pytest.importorskip(extra)
    docs, index = tmp_path / "docs", tmp_path / "index"
    docs.mkdir()
    (docs / "note.txt").write_text("Ice floats on water.", encoding="utf-8")
    _run("index", docs, "--out", index)
    status, imported, _ = _run("index", docs, "--out", index)
    assert status == 0
    assert not {"torch", "transformers", "sentence_transformers"} & set(imported)
    _run("index", docs, "--out", index, "--chunk-size", "50")
    for chunk_size, embedded in ((50, False), (60, True), (None, True), (None, False)):
        chosen = () if chunk_size is None else ("--chunk-size", chunk_size)
        status, imported, shown = _run("index", docs, "--out", index, *chosen)
        assert status == 0, shown
        assert ("sentence_transformers" in imported) == embedded


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "rag_middle", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.startswith("rag-middle ")
