"""Every configuration runs, with a tiny model on a few rows; wrong ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle import EvaluationConfigError, RagMiddleModel, UnknownNameError, retrieval
from rag_middle.evaluation import LabelledMethod
from rag_middle.methods import Compose, Method, PositionalHiddenStates
from tests.evaluation.test_tasks import DATA, LetterEmbedder

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce import (
    EvaluationConfig,
    ModelConfig,
    evaluate,
    markdown_tables,
    read_config,
)
from rag_middle_reproduce.__main__ import main

FOLDER = Path(__file__).parents[1]
CONFIGS = sorted(FOLDER.glob("*/*.yaml"))
#: The configuration of each paper that takes least time.
QUICK = (
    *("pine/judge", "ms_poe/multi_document_qa", "positional_hidden_states/key_value_retrieval"),
    *("lpes/multi_document_qa", "siw/key_value_retrieval"),
)
LONG = {
    "input": "Which?",
    "context": "Passage 1:\nLyon.\n\nPassage 2:\nNantes.\n",
    "answers": ["N"],
}
TIMELINE = {"context": "First b, then a.", "question": "1. a\n2. b", "answer": "2, 1"}
CHOICES = {"question": "Which is a river?", "choices": ["Lyon", "Loire"], "answer": 1}
PAIRS = {"prompt": "What is 2 + 2?", "chosen": "It is 4.", "rejected": "It is 5."}
TASK = {"task": "invented_documents", "label": "three", "options": {"documents": 3}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows under the names that the configurations use."""
    folder = tmp_path_factory.mktemp("data")
    # First lines, cut: the tiny model's tokens are bytes.
    rows = [json.loads(line) for line in (DATA / "nq_open_gold.jsonl").read_text().splitlines()]
    pairs = [[f"key{n}", f"value{n}"] for n in range(140)]
    asked = {"key": "key3", "value": "value3"}
    sets = ("hotpotqa", "2wikimqa", "musique", "qasper", "multifieldqa_en")
    files: dict[str, list[dict[str, Any]]] = {
        "nq-open-gold.jsonl.gz": [
            {**row, "text": row["text"][:40] + " " + row["answers"][0]} for row in rows
        ],
        "kv-retrieval-75_keys.jsonl.gz": [{"ordered_kv_records": pairs[:75], **asked}] * 2,
        "kv-retrieval-140_keys.jsonl.gz": [{"ordered_kv_records": pairs, **asked}] * 2,
        "longbench.jsonl": [{**LONG, "dataset": name} for name in sets for _ in range(2)],
        "loogle-longdep-qa.jsonl": [{**TIMELINE, "task": "Timeline reorder"}] * 2,
        "mmlu-test.jsonl": [CHOICES] * 2,
        "mmlu-dev.jsonl": [CHOICES] * 2,
        "rewardbench.jsonl": [PAIRS] * 2,
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder


def test_there_is_a_configuration_for_every_paper() -> None:
    papers = {path.parent.name for path in CONFIGS}
    assert papers == {"pine", "ms_poe", "positional_hidden_states", "lpes", "siw"}
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in CONFIGS:
        assert path.relative_to(FOLDER).as_posix() in readme


def shrunk(method: Method) -> Method:
    """A published setting names channels and layers that a tiny model does not have."""
    if isinstance(method, PositionalHiddenStates):
        return PositionalHiddenStates(channels=(3,), factor=method.factor, layers=(0, 1))
    if isinstance(method, Compose):
        return Compose(methods=tuple(map(shrunk, method.methods)))
    return method


def tiny_version(config: EvaluationConfig) -> EvaluationConfig:
    """One model, two questions, two positions, short answers; the settings otherwise."""
    small = {"limit": 2, "max_new_tokens": 2}
    tasks = []
    for task in config.tasks:
        measurement = {**config.measurement, **task.measurement, **small}
        if "positions" in measurement:
            measurement["positions"] = (0, 1)
        tasks.append(replace(task, measurement=measurement))
    methods = tuple(
        LabelledMethod(method.label, shrunk(method.method))
        for method in config.methods_of(config.models[0])
    )
    model = replace(config.models[0], methods=())
    return replace(config, models=(model,), tasks=tuple(tasks), methods=methods[1:])


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for path in CONFIGS
        for name in [f"{path.parent.name}/{path.stem}"]
    ],
)
@pytest.mark.one_in(4)
def test_a_configuration_runs_with_a_tiny_model(
    path: Path, data: Path, tmp_path: Path, model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "SentenceTransformerEmbedder", LetterEmbedder)
    config = read_config(path)
    labels = [method.label for method in config.methods_of(config.models[0])]
    loaded: list[ModelConfig] = []

    def load(entry: ModelConfig) -> RagMiddleModel:
        loaded.append(entry)
        return model

    cells = list(evaluate(tiny_version(config), load, data=data, records=tmp_path))
    assert [entry.name for entry in loaded] == [config.models[0].name]
    assert [cell.task for cell in cells] == [task.label for task in config.tasks]
    for cell in cells:
        assert [method.label for method in cell.summary.methods] == labels
        assert cell.summary.questions == 2
        json.dumps(cell.to_dict())
    page = markdown_tables(config, cells)
    assert config.title in page
    for published in config.published:
        assert published.model in {entry.name for entry in config.models}
        assert published.task in {task.label for task in config.tasks}
        assert "arXiv" in config.source
        assert "theirs" in config.source
        if published.model == config.models[0].name:
            assert f"{published.mean:g}" in page
            assert f"published ({config.source})" in page


def written(tmp_path: Path, **changes: Any) -> Path:
    content = {
        "title": "A comparison",
        "models": [{"name": "a/model"}],
        "tasks": [TASK],
        "methods": [{"name": "position_interpolation", "options": {"scale": 1.5}}],
        "measurement": {"limit": 3, "max_new_tokens": 2, "positions": [0, 2]},
        **changes,
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")  # which is YAML, too
    return path


def test_the_command_writes_tables_and_goes_on_from_its_records(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    score = {"model": "a/model", "task": "three", "method": "none", "mean": 12.5}
    path = written(
        tmp_path,
        models=[{"name": "a/model", "methods": [{"name": "lpes", "options": {"factors": 1.5}}]}],
        source="their paper",
        published=[score, {**score, "method": "another method"}],
        cost=True,
    )
    out = tmp_path / "out"
    main([str(path), "--limit", "2", "--out", str(out)])
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "published (their paper)" in page
    assert "| another method (not run) |" in page
    [cell] = json.loads((out / "results.json").read_text(encoding="utf-8"))["cells"]
    labels = [method["label"] for method in cell["summary"]["methods"]]
    assert labels == ["none", "position_interpolation", "lpes"]
    assert cell["summary"]["methods"][1]["cost"]["first_token_ratio"] > 0
    [records] = (out / "records").glob("*.jsonl")
    before = records.read_bytes()
    main([str(path), "--limit", "2", "--out", str(out)])
    assert records.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ["a"]}, "'model'"),
        ({"models": []}, "at least one of its models"),
        ({"models": [{"dtype": "float32"}]}, "'name'"),
        ({"tasks": [TASK, TASK]}, "under different names"),
        ({"tasks": [{**TASK, "measurement": {"position": 3}}]}, "no 'position'"),
        ({"tasks": [{**TASK, "options": {"document": 3}}]}, "Did you mean 'documents'"),
        ({"tasks": [{"task": "own_questions", "options": {"data": "no.jsonl"}}]}, "no.jsonl"),
        ({"tasks": [{**TASK, "measurement": {"metric": "charm"}}]}, "no metric 'charm'"),
        ({"methods": ["mspoe"]}, "Did you mean 'ms_poe'"),
        ({"published": [3]}, "Published"),
    ],
)
def test_a_wrong_configuration_is_refused_before_a_model_is_loaded(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        main([str(written(tmp_path, **changes)), "--out", str(tmp_path / "out")])


def test_models_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationConfigError, match="It has a/model"):
        read_config(written(tmp_path)).with_models(["b/model"])
    with pytest.raises(EvaluationConfigError, match="cannot be read"):
        read_config(tmp_path / "nothing.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(EvaluationConfigError, match="cannot be read"):
        read_config(tmp_path / "broken.yaml")
    with pytest.raises(UnknownNameError, match="invented_documents"):
        read_config(written(tmp_path, tasks=[{"task": "invented"}])).check(tmp_path)
