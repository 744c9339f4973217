"""Whoever answers, the records are the same."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rag_middle.cli.measuring import start_workers
from rag_middle.errors import ConfigError, RagMiddleError
from rag_middle.evaluation import Answering, Measurement, run
from rag_middle.evaluation.runner import Batch, IndexedReply, answered
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.sharing import origin
from rag_middle.workers import Processes, RayWorkers, Workers, torch_threads
from tests.reader.questions import InventedDocuments
from tests.tiny_models import saved

TASK = InventedDocuments(documents=4)
METHODS = ["ms_poe"]


def measurement(**options: Any) -> Measurement:
    return Measurement(limit=3, positions=2, max_batch_size=2, max_new_tokens=3, **options)


class Backwards(Workers[Batch, list[IndexedReply]]):
    """Several workers, the last of which are the fastest; one may end after some batches."""

    count = 3

    def __init__(self, model: RagMiddleModel, lives: int = 1000) -> None:
        super().__init__(lambda batch: [*answered(model, batch)])
        self.sizes: list[int] = []
        self.lives = lives

    def results(self, tasks: Sequence[Batch]) -> Iterator[tuple[int, list[IndexedReply]]]:
        self.sizes += [len(task.prompts) for task in tasks]
        for index, replies in reversed(list(super().results(tasks))):
            if not self.lives:
                raise RagMiddleError("Worker processes ended 3 times in a row.")
            self.lives -= 1
            yield index, replies


@pytest.mark.parametrize("scoring", ["generation", "likelihood"])
@pytest.mark.one_in(2)
def test_workers_give_the_records_of_one_process(model: RagMiddleModel, scoring: Any) -> None:
    how = measurement(scoring=scoring, controls=True)
    workers = Backwards(model)
    results = run(model, TASK, METHODS, how, workers=workers)
    alone = run(model, TASK, METHODS, how)
    assert results.records.keys() == alone.records.keys()
    for key, record in results.records.items():
        assert (record.answer, record.prompt_tokens) == (
            alone.records[key].answer,
            alone.records[key].prompt_tokens,
        )
        assert record.scores == pytest.approx(alone.records[key].scores, abs=1e-4)
    assert max(workers.sizes) == 2


def test_what_workers_answered_before_they_ended_is_kept(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    path, how = tmp_path / "records.jsonl", measurement()
    with pytest.raises(RagMiddleError):
        run(model, TASK, METHODS, how, records=path, workers=Backwards(model, lives=4))
    asked = Backwards(model)
    results = run(model, TASK, METHODS, how, records=path, workers=asked)
    assert len(results.records) == 3 * 2 * 2
    assert sum(asked.sizes) <= 3 * 2 * 2 - 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_several_processes_give_the_answers_of_one(
    kind: str, model: RagMiddleModel, tmp_path: Path
) -> None:
    answering = Answering(str(saved(model, tmp_path / "model")), {"device": "cpu"})
    if kind == "ray":
        pytest.importorskip("ray", reason="needs Ray (extra ray)")
        made: Workers[Batch, list[IndexedReply]] = RayWorkers(answering, 2, 1)
    else:
        made = Processes(answering, 2, 1)
    with closing(made) as workers, torch_threads(1):
        results = run(model, TASK, METHODS, measurement(), workers=workers)
        alone = run(model, TASK, METHODS, measurement())
    assert {key: record.answer for key, record in results.records.items()} == {
        key: record.answer for key, record in alone.records.items()
    }


@pytest.mark.parametrize(
    ("device", "backend", "told"),
    [("cuda:1", "ray", "Leave the number out of --device"), ("cuda", "processes", "--backend ray")],
)
def test_workers_on_gpus_are_placed_by_ray(device: str, backend: str, told: str) -> None:
    model: Any = SimpleNamespace(device=torch.device(device))
    how: Any = {"backend": backend, "count": 2, "threads": 1}
    with pytest.raises(ConfigError, match=told):
        start_workers(Answering, model, {"device": device}, **how)


def test_other_weights_under_the_same_name_are_refused(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = RagMiddleModel.from_pretrained(saved(model, Path("model")))
    found = origin(loaded)
    assert found["model"] == str(tmp_path / "model")  # wherever a worker is started
    monkeypatch.chdir("/")
    assert Answering(**found)() is not None
    with torch.no_grad():
        next(loaded.model.parameters()).add_(1)
    loaded.model.save_pretrained(found["model"])
    with pytest.raises(ConfigError, match="found other weights under"):
        Answering(**found)()
