"""Every configuration of examples/reproduce runs: with a tiny model, on a few rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle import retrieval
from rag_middle.evaluation.config import EvaluationConfig, ModelConfig, read_config
from rag_middle.evaluation.matrix import evaluate_matrix, write_matrix
from rag_middle.evaluation.measurement import labelled_methods
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Compose, Method, PositionalHiddenStates
from tests.evaluation.test_tasks import CHOICES, DATA, LONG, PAIRS, TIMELINE, LetterEmbedder

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")

FOLDER = Path(__file__).parents[2] / "examples" / "reproduce"
CONFIGS = sorted(FOLDER.glob("*/*.yaml"))
#: The configuration of each paper that takes least time.
QUICK = (
    *("pine/judge", "ms_poe/multi_document_qa", "positional_hidden_states/key_value_retrieval"),
    *("lpes/multi_document_qa", "siw/key_value_retrieval"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows under the names that the configurations use."""
    folder = tmp_path_factory.mktemp("data")
    # First lines, cut: the tiny model's tokens are bytes.
    rows = [json.loads(line) for line in (DATA / "nq_open_gold.jsonl").read_text().splitlines()]
    short = [{**row, "text": row["text"][:40] + " " + row["answers"][0]} for row in rows]
    pairs = [[f"key{n}", f"value{n}"] for n in range(140)]
    kv = {"key": "key3", "value": "value3"}
    sets = ("hotpotqa", "2wikimqa", "musique", "qasper", "multifieldqa_en")
    files: dict[str, list[dict[str, Any]]] = {
        "nq-open-gold.jsonl.gz": short,
        "kv-retrieval-75_keys.jsonl.gz": [{"ordered_kv_records": pairs[:75], **kv}] * 2,
        "kv-retrieval-140_keys.jsonl.gz": [{"ordered_kv_records": pairs, **kv}] * 2,
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
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in CONFIGS:
        assert path.relative_to(FOLDER).as_posix() in listed


def shrunk(method: Method) -> Method:
    """A published setting names channels and layers that a tiny model does not have."""
    held = getattr(method, "method", None)  # a preset holds the method and its model's shape
    if isinstance(held, Method):
        return shrunk(held)
    if isinstance(method, PositionalHiddenStates):
        return PositionalHiddenStates(channels=(3,), factor=method.factor, layers=(0, 1))
    if isinstance(method, Compose):
        return Compose(methods=tuple(map(shrunk, method.methods)))
    return method


def tiny_version(config: EvaluationConfig) -> EvaluationConfig:
    """One model, two questions, two places, short answers; the settings otherwise."""
    entry = config.models[0]
    tasks = tuple(
        replace(
            task,
            measurement={**task.measurement, "limit": 2, "max_new_tokens": 2}
            | (
                {"positions": (0, 1)}
                if "positions" in {*task.measurement, *config.measurement}
                else {}
            ),
        )
        for task in config.tasks
    )
    return replace(config, models=(entry,), tasks=tasks)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for path in CONFIGS
        for name in [f"{path.parent.name}/{path.stem}"]
    ],
)
def test_a_configuration_runs_with_a_tiny_model(
    path: Path,
    data: Path,
    tmp_path: Path,
    model: RagMiddleModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrieval, "SentenceTransformerEmbedder", LetterEmbedder)
    config = read_config(path)
    small = tiny_version(config)
    # The methods with their published parameters, shrunk to the model: the labels stay.
    resolved = labelled_methods([*config.methods, *small.models[0].methods])
    monkeypatch.setattr(
        "rag_middle.evaluation.runner.labelled_methods",
        lambda specs: tuple(replace(each, method=shrunk(each.method)) for each in resolved),
    )
    loaded: list[ModelConfig] = []

    def load(entry: ModelConfig) -> RagMiddleModel:
        loaded.append(entry)
        return model

    cells = list(evaluate_matrix(small, load, data=data, records=tmp_path))
    assert [each.name for each in loaded] == [config.models[0].name]
    assert [cell.task for cell in cells] == [task.name for task in config.tasks]
    for cell in cells:
        assert [each.label for each in cell.summary.methods] == [each.label for each in resolved]
        assert cell.summary.questions == 2
    page = write_matrix(small, cells, tmp_path).read_text(encoding="utf-8")
    assert config.title in page
    for published in config.published:
        if published.model == config.models[0].name:
            assert f"{published.mean:g}" in page
            assert f"published ({config.source})" in page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for path in CONFIGS
        for name in [f"{path.parent.name}/{path.stem}"]
    ],
)
def test_published_numbers_belong_to_something_that_is_run(path: Path) -> None:
    config = read_config(path)
    models = {each.name for each in config.models}
    tasks = {each.name for each in config.tasks}
    for each in config.published:
        assert each.model in models
        assert each.task in tasks
        assert "arXiv" in config.source
        assert "theirs" in config.source
