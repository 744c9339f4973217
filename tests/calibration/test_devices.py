"""A GPU for each worker: assigned by a function, handed on to processes and to Ray."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rag_middle.calibration import (
    FromDisk,
    Job,
    Objective,
    Scoring,
    scored,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method
from rag_middle.workers import Processes, RayWorkers, _Worker, worker_devices


@pytest.mark.parametrize(
    ("count", "options", "devices"),
    [
        (3, {"gpus": 0}, ()),
        (3, {"gpus": 4, "device": "cpu"}, ()),
        (1, {"gpus": 4}, ("cuda:1",)),
        (3, {"gpus": 4}, ("cuda:1", "cuda:2", "cuda:3")),
        (4, {"gpus": 4, "device": "cuda"}, ("cuda:1", "cuda:2", "cuda:3", "cuda:0")),
        (1, {"gpus": 4, "device": "cuda:2"}, ("cuda:2",)),
        (1, {"gpus": 4, "device_map": "auto"}, ()),
        (6, {"gpus": 1, "cluster": True}, ("cuda",) * 6),
    ],
)
def test_workers_get_a_gpu_each(
    count: int, options: dict[str, Any], devices: tuple[str, ...]
) -> None:
    assert worker_devices(count, **options) == devices


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (3, {"gpus": 2}, r"workers=3 take a GPU each, .*there are 2 GPUs here: .* at most 2"),
        (2, {"gpus": 4, "device": "cuda:2"}, r"device='cuda:2' .*names one: leave out its number"),
        (1, {"gpus": 4, "device": "cuda:2", "cluster": True}, "cluster gives a worker its GPU"),
        (1, {"gpus": 2, "device": "cuda:2"}, "counted from 0, and there are 2 GPUs here"),
        (2, {"gpus": 4, "device_map": "auto"}, "device_map='auto' .*spreads one model"),
        (2, {"gpus": 4, "device": "auto"}, "device='auto' .*spreads one model"),
    ],
)
def test_what_does_not_fit_is_refused(count: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        worker_devices(count, **options)


def test_a_worker_loads_on_its_device_and_keeps_the_other_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[dict[str, Any]] = []

    def stand_in(_name: str, **options: Any) -> Any:
        loaded.append(options)
        raise RuntimeError("no such model")

    monkeypatch.setattr(RagMiddleModel, "from_pretrained", stand_in)
    options = {"device": None, "dtype": "bfloat16", "quantization_config": "8bit"}
    opening = FromDisk(model="a/model", examples=(), criterion="log_likelihood", options=options)
    for device in ((), ("cuda:3",)):
        with pytest.raises(RuntimeError, match="no such model"):
            _Worker(Scoring(opening), torch.get_num_threads(), *device).do(0, ())
    assert loaded == [options, {**options, "device": "cuda:3"}]


@dataclass(frozen=True)
class Reporting:
    """Scores every method with the number of the worker's device, once all have started."""

    folder: Path
    count: int

    def __call__(self, device: str) -> Objective:
        def score(method: Method) -> float:
            (self.folder / device.replace(":", "-")).touch()
            while len(list(self.folder.iterdir())) < self.count:
                pass
            return float(device.partition(":")[2])

        return score


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_process_takes_another_device(tmp_path: Path) -> None:
    jobs = [Job(key=str(f), method=LPES(factors=f)) for f in (1.1, 1.2)]
    reporting = Scoring(Reporting(tmp_path, 2))
    with closing(Processes(reporting, 2, 1, ("cuda:1", "cuda:0"))) as workers:
        assert {outcome.score for _, outcome in scored(workers, jobs)} == {0.0, 1.0}
    with pytest.raises(ConfigError, match="2 worker processes and 1 devices"):
        Processes(reporting, 2, 1, ("cuda:1",))


class FakeRay(SimpleNamespace):
    """As much of Ray as starts actors, which run here."""

    def __init__(self, gpus: int) -> None:
        super().__init__(asked=[], made=[], down=False)
        self.cluster_resources = lambda: {"CPU": 8.0, "GPU": float(gpus)}

    def is_initialized(self) -> bool:
        return False

    def init(self, **_options: Any) -> None:
        return

    def shutdown(self) -> None:
        self.down = True

    def kill(self, _actor: Any) -> None:
        return

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)
        return lambda kind: SimpleNamespace(remote=lambda *a: self.made.append(a))


def test_ray_actors_ask_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay(gpus=2)
    monkeypatch.setitem(sys.modules, "ray", ray)
    reporting = Scoring(Reporting(tmp_path, 2))
    RayWorkers(reporting, 2, 1, gpus_each=1).close()
    RayWorkers(reporting, 3, 1).close()
    assert [options["num_gpus"] for options in ray.asked] == [1, 0]
    assert [made[2:] for made in ray.made] == [("cuda",)] * 2 + [()] * 3
    ray.down = False
    with pytest.raises(ConfigError, match=r"workers=3 .* cluster has 2: .* 2"):
        RayWorkers(reporting, 3, 1, gpus_each=1)
    assert ray.down
