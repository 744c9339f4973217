"""``rag-middle evaluate``, and the configurations it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rag_middle.errors import EvaluationConfigError, MissingExtraError
from rag_middle.evaluation.config import read_config
from tests.cli.conftest import Run

TASK = {
    "task": "invented_documents",
    "label": "three documents",
    "options": {"documents": 3},
    "measurement": {"positions": [0, 2]},
}


def config(tmp_path: Path, **changes: Any) -> Path:
    content = {
        "title": "A comparison",
        "models": ["a/model"],
        "tasks": [TASK],
        "methods": ["position_interpolation"],
        "measurement": {"limit": 3, "max_new_tokens": 2},
        **changes,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_configuration_is_run_into_a_folder(run: Run, model: Path, tmp_path: Path) -> None:
    name = str(model)
    score = {"model": name, "task": "three documents", "method": "none", "mean": 12.5}
    other = {**score, "method": "another method", "mean": 50}
    path = config(
        tmp_path,
        models=[{"name": name, "dtype": "float32", "methods": ["lpes"]}],
        published={"source": "their paper", "scores": [score, other]},
        cost=True,
    )
    out = tmp_path / "out"
    shown = run("evaluate", path, "--limit", 2, "--out", out)
    assert shown.status == 0
    assert "three documents" in shown.out
    assert "theirs" in shown.out
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "published (their paper)" in page
    assert "| another method (not run) |" in page
    [cell] = json.loads((out / "results.json").read_text(encoding="utf-8"))["cells"]
    assert [each["label"] for each in cell["summary"]["methods"]] == [
        "none",
        "position_interpolation",
        "lpes",
    ]
    assert cell["summary"]["questions"] == 2
    assert cell["summary"]["methods"][1]["cost"]["first_token_ratio"] > 0
    [records] = (out / "records").glob("*.jsonl")
    before = records.read_bytes()
    again = run("evaluate", path, "--limit", 2, "--out", out, "--json")
    assert again.json["cells"][0]["summary"]["questions"] == 2
    assert records.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ["a"]}, "Did you mean 'models'"),
        ({"models": []}, "has no models"),
        ({"models": "a"}, "a list is expected"),
        ({"models": [{"dtype": "float32"}]}, "incomplete"),
        ({"tasks": [TASK, TASK]}, "Two tasks are called 'three documents'"),
        ({"tasks": [{**TASK, "measurement": {"position": 3}}]}, "Did you mean 'positions'"),
        ({"methods": ["mspoe"]}, "Did you mean 'ms_poe'"),
        ({"methods": ["pine", "pine"]}, "Two methods are called"),
        ({"published": [3]}, "'source' and 'scores'"),
    ],
)
def test_a_wrong_configuration_is_told_before_a_model_is_loaded(
    run: Run, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    shown = run("evaluate", config(tmp_path, **changes))
    assert shown.status == 2
    assert message in shown.err


def test_wrong_tasks_are_told_before_a_model_is_loaded(run: Run, tmp_path: Path) -> None:
    for task, message in (
        ({"task": "own_questions", "options": {"data": "no.jsonl"}}, "no.jsonl"),
        ({"task": "invented"}, "invented_documents"),
        ({**TASK, "options": {"document": 3}}, "Did you mean 'documents'"),
    ):
        shown = run("evaluate", config(tmp_path, tasks=[task]))
        assert shown.status == 2
        assert message in shown.err


def test_a_model_that_is_not_in_the_configuration_is_told(run: Run, tmp_path: Path) -> None:
    shown = run("evaluate", config(tmp_path), "--model", "b/model")
    assert shown.status == 2
    assert "It has a/model" in shown.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[]", "should be an object"),
        ("a.yaml", "a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(EvaluationConfigError, match=message):
        read_config(tmp_path / name)
    with pytest.raises(EvaluationConfigError, match="cannot be read"):
        read_config(tmp_path / "nothing.yaml")


def test_yaml_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("title: a", encoding="utf-8")
    with pytest.raises(MissingExtraError, match="pyyaml"):
        read_config(tmp_path / "a.yaml")


def test_paths_lie_beside_the_configuration_unless_a_folder_is_given(
    run: Run, model: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "data"
    elsewhere.mkdir()
    line = {"question": "q", "answer": "a", "gold": "It is a.", "distractors": ["No."]}
    (elsewhere / "own.jsonl").write_text(json.dumps(line), encoding="utf-8")
    task = {"task": "own_questions", "options": {"data": "own.jsonl"}}
    path = config(tmp_path, models=[str(model)], tasks=[task], methods=[])
    assert "own.jsonl" in run("evaluate", path, "--out", tmp_path / "out").err
    shown = run("evaluate", path, "--data", elsewhere, "--out", tmp_path / "out", "--json")
    assert shown.json["cells"][0]["summary"]["questions"] == 1
