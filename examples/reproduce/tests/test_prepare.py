"""Datasets are fetched from named homes, and what cannot be fetched is said."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import prepare
import pytest


@pytest.fixture
def half_online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories can be reached, the hub cannot."""

    def content(source: prepare.Source) -> bytes:
        if source.hub:
            raise OSError("no network")
        return source.path.encode()

    monkeypatch.setattr(prepare.Source, "content", content)


def test_every_file_has_a_home_of_its_own() -> None:
    names = [source.name for source in prepare.SOURCES]
    assert len(set(names)) == len(names) == 54
    for source in prepare.SOURCES:
        assert source.home.startswith(("https://huggingface.co/datasets/", "https://github.com/"))


@pytest.mark.usefixtures("half_online")
def test_what_cannot_be_fetched_is_said_with_its_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="files are missing: fetch them from their homes"):
        prepare.main(["--data", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "rewardbench.jsonl: missing: OSError no network (https://huggingface.co/data" in shown
    name = "kv-retrieval-140_keys.jsonl.gz"
    assert f"{name}: fetched (https://github.com/nelson-liu/lost-in-the-middle/blob/29b8" in shown
    content = (tmp_path / name).read_bytes()
    assert content == f"kv_retrieval_data/{name}".encode()
    sources = json.loads((tmp_path / "sources.json").read_text())
    assert sources[name]["sha256"] == hashlib.sha256(content).hexdigest()
    prepare.main(["--data", str(tmp_path), "--only", name])
    assert capsys.readouterr().out == f"{name}: there\n"
    prepare.main(["--data", str(tmp_path), "--list"])
    assert f"there   {name}" in capsys.readouterr().out
    prepare.main(["--list"])
    assert f"\n{name}  https://github.com/nelson-liu" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        prepare.main([])
    assert "--data FOLDER is needed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no file 'x'"):
        prepare.main(["--data", str(tmp_path), "--only", "x"])


def test_hub_datasets_become_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = types.ModuleType("datasets")
    datasets.load_dataset = lambda name, config, split, revision: [  # type: ignore[attr-defined]
        {"question": f"{name} {config} {split} {revision}", "answer": "é"}
    ]
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    source = prepare.Source(
        name="a.jsonl", hub="o/d", revision="r", configs=("x", "y"), config_field="subject"
    )
    first, second = map(json.loads, source.content().decode().splitlines())
    assert first == {"question": "o/d x test r", "answer": "é", "subject": "x"}
    assert second["subject"] == "y"


def test_archives_of_the_hub_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("data/trec.jsonl", '{"a": 1}\n')
        archive.writestr("val/law_val.csv", 'id,question,A,answer\n0,"a, b",c,A\n')
    (tmp_path / "data.zip").write_bytes(buffer.getvalue())
    hub = types.ModuleType("huggingface_hub")
    hub.hf_hub_download = lambda *_, **__: str(tmp_path / "data.zip")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    archived: dict[str, Any] = {"name": "a", "hub": "o/d", "archive": "data.zip"}
    lines = prepare.Source(**archived, member="data/trec.jsonl")
    assert lines.content() == b'{"a": 1}\n'
    table = prepare.Source(
        **archived, configs=("law",), config_field="subject", member="val/{config}_val.csv"
    )
    row = json.loads(table.content())
    assert row == {"id": "0", "question": "a, b", "A": "c", "answer": "A", "subject": "law"}


def test_prompts_of_pines_authors_become_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ["[INST]Read.a[/INST]", ["[INST]Read.", ["a"], "[/INST]", ""], ["é"]]
    asked = []

    def open_address(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(json.dumps([entry]).encode())

    monkeypatch.setattr("urllib.request.urlopen", open_address)
    source = prepare.Source(name="a", github="o/r", revision="c", path="d/a.json", format="pine")
    assert json.loads(source.content()) == {"parts": entry[1], "answers": ["é"]}
    assert asked == ["https://media.githubusercontent.com/media/o/r/c/d/a.json"]
