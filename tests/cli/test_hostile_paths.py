"""Paths and names that no disk has: one line each, on every option that takes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.hostile import report, tries
from tests.cli.answering import use_named_embedder, write_documents
from tests.cli.conftest import Run

pytest.importorskip("faiss")
pytest.importorskip("filelock")

#: Where {} stands, the path does. What comes after it must not be reached.
OPTIONS = [
    *(
        f"ask what --docs DOCS {rest}"
        for rest in (
            "--model MODEL --docs {}",
            "--model MODEL --index {}",
            "--model MODEL --prompt-template {}",
            "--model MODEL --embedder {}",
            "--model {}",
            "--model MODEL --method {}",
            "--model MODEL --method profile:{}",
            "--model MODEL --device {}",
            "--model MODEL --attn-implementation {}",
            "--model nobody/nothing --revision {}",
        )
    ),
    "chat --docs DOCS --model {}",
    "chat --docs {} --model MODEL",
    "chat --docs DOCS --index {} --model MODEL",
    "chat --docs DOCS --prompt-template {} --model MODEL",
    "calibrate --method lpes --model {} --out OUT",
    "calibrate --method lpes --model MODEL --data {} --out OUT",
    "calibrate --method lpes --model nobody/nothing --out {}",
    "calibrate --method {} --model MODEL --out OUT",
    "demo --model {} --out OUT",
    "demo --model nobody/nothing --out {}",
    "demo --model MODEL --method profile:{} --out OUT",
    "diagnose --model {} --out OUT",
    "diagnose --model MODEL --data {} --out OUT",
    "diagnose --model MODEL --methods profile:{} --out OUT",
    "diagnose --model MODEL --task {} --out OUT",
    "diagnose --model nobody/nothing --out {}",
    "evaluate {} --out OUT",
    "evaluate CONFIG --out {}",
    "evaluate CONFIG --model {} --out OUT",
    "evaluate CONFIG_OF_FILES --data {} --out OUT",
    "generate --model {} --prompt PROMPT",
    "generate --model MODEL --prompt {}",
    "generate --model MODEL --prompt PROMPT --method profile:{}",
    "index {}",
    "index DOCS --out {}",
    "index DOCS --embedder {} --out OUT",
    "index DOCS --model {} --out OUT",
    "verify {}",
    "verify --method {}",
    "methods {}",
]
#: Names that a disk may have: whether there is something is for the command to find out.
POSSIBLE = {
    "home of nobody": "~nobody-of-this-name/x",
    "line ends": "a\nb",
    "of no encoding": "\udcff",
}

#: One name of every kind, which the suite tries; all of them where attacks are scaled up.
USUALLY = ("long name", "null byte", "through a file", "below a loop of links", "line ends")


@pytest.fixture
def files(tmp_path: Path, model: Path) -> dict[str, str]:
    """What capital words of the options stand for."""
    prompt, config, of_files = (tmp_path / name for name in ("p.txt", "c.json", "f.json"))
    prompt.write_text("[[rm:doc]]Paris.[[/rm:doc]] Where?")
    task = {"task": "key_value_retrieval", "options": {"keys": 4}}
    config.write_text(json.dumps({"models": ["nobody/nothing"], "tasks": [task]}))
    task = {"task": "multi_document_qa", "options": {"data": "questions.jsonl"}}
    of_files.write_text(json.dumps({"models": ["nobody/nothing"], "tasks": [task]}))
    return {
        "MODEL": str(model),
        "DOCS": str(write_documents(tmp_path / "docs")),
        "OUT": str(tmp_path / "out"),
        "PROMPT": str(prompt),
        "CONFIG": str(config),
        "CONFIG_OF_FILES": str(of_files),
    }


def hostile_paths(folder: Path) -> dict[str, str]:
    file, loop = folder / "a_file", folder / "loop"
    file.write_text("a file")
    loop.symlink_to(loop)
    return {
        "long name": "x" * 5000,
        "long name below a folder": str(folder / ("x" * 5000)),
        "long path": "a/" * 3000,
        "long path from the root": "/" + "a/" * 3000,
        "long hub name": "a/" + "x" * 5000,
        "null byte": "a\0b",
        "null byte below a folder": str(folder / "a\0b"),
        "through a file": str(file / "below"),
        "through a loop of links": str(loop),
        "below a loop of links": str(loop / "below"),
        "device": "/dev/full/x",
        "process": "/proc/self/mem/x",
        "kernel": "/proc/nothing",
    }


@pytest.mark.timeout(tries(120))
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.one_in(7)
def test_one_line_says_what_is_wrong(
    option: str,
    files: dict[str, str],
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "--embedder" not in option:
        use_named_embedder(monkeypatch, tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    wrong = []
    paths = hostile_paths(tmp_path) | POSSIBLE
    if tries(1) == 1:
        paths = {name: paths[name] for name in USUALLY}
    for name, path in paths.items():
        arguments = [
            files.get(word, word).replace("{}", path)
            for word in option.replace(" {}", " \t").split(" ")
        ]
        arguments = [argument.replace("\t", path) for argument in arguments]
        try:
            shown = run(*arguments, input="")
        except BaseException as error:
            wrong.append((name, type(error).__name__, str(error)[:150]))
            continue
        told = shown.err.strip().splitlines()
        lines = [line for line in told if not line.startswith("Data: ")]  # what was recognised
        if name in POSSIBLE and shown.status == 0:
            continue
        steps = 2 if option.startswith("demo") else 0  # what it is doing is told before
        refused = shown.status == 2 and lines[-1:] and lines[-1].startswith("Error: ")
        if not refused or len(lines) > 1 + steps:
            wrong.append((name, shown.status, shown.err[-300:]))
    assert not wrong
    report(f"{option}: {len(paths)} paths")
