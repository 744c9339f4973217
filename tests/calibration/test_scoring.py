"""Whoever scores, the outcomes are the same; and what is known survives an interruption."""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rag_middle.calibration import Example, FromDisk
from rag_middle.calibration.objective import Outcome
from rag_middle.calibration.scoring import Outcomes, ScoringJob
from rag_middle.errors import (
    ConfigError,
    ContextOverflowError,
    FileFormatError,
    MissingExtraError,
)
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, PositionalHiddenStates
from rag_middle.workers import (
    Processes,
    RayWorkers,
    _Worker,
    worker_devices,
)

JOBS = [ScoringJob(method=LPES(factors=factor)) for factor in (1.0, 1.1, 1.3, 1.7)] + [
    ScoringJob(method=PositionalHiddenStates(channels=(3,), factor=-1.0), start=1, stop=5)
]

# -- workers ---------------------------------------------------------------------------------------


def opening(folder: Path, examples: list[Example]) -> FromDisk:
    return FromDisk(
        model=str(folder),
        examples=tuple(examples),
        criterion="log_likelihood",
        options={"device": "cpu"},
    )


@dataclass(frozen=True)
class Failing:
    """Cannot be opened, or opens and cannot score."""

    opens: bool

    def __call__(self) -> Callable[[ScoringJob], Outcome]:
        def score(job: ScoringJob) -> Outcome:
            raise ContextOverflowError(prompt_tokens=90, max_new_tokens=20, context_window=100)

        if self.opens:
            return score
        raise MissingExtraError("This model", package="some_package", extra="some")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("failing", "kind", "message"),
    [
        (Failing(opens=True), ContextOverflowError, "90"),
        (Failing(opens=False), MissingExtraError, "some_package"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_as_it_is(
    failing: Failing, kind: type[Exception], message: str
) -> None:
    workers: Processes[ScoringJob, Outcome] = Processes(failing, 1, 1)
    with closing(workers), pytest.raises(kind, match=message):
        list(workers.results(JOBS))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"rag-middle\[ray\]"):
        RayWorkers(opening(tmp_path, []), 2, 1)


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "gpus", "options", "devices"),
    [
        (3, 0, {}, ()),
        (3, 4, {"device": "cpu"}, ()),
        (1, 4, {}, ()),
        (3, 4, {}, ("cuda:1", "cuda:2", "cuda:3")),
        (4, 4, {"device": "cuda"}, ("cuda:1", "cuda:2", "cuda:3", "cuda:0")),
        (1, 4, {"device": "cuda:2"}, ()),
        (1, 4, {"device_map": "auto"}, ()),
        (6, 1, {"cluster": True}, ("cuda",) * 6),
    ],
)
def test_workers_get_a_gpu_each(
    count: int,
    gpus: int,
    options: dict[str, Any],
    devices: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert worker_devices(count, **options) == devices


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (5, {}, r"workers=5 take a GPU each, .*there are 4: .* at most 4"),
        (2, {"device": "cuda:2"}, r"leave out .*the number in device='cuda:2'"),
        (2, {"device_map": "auto"}, "leave out device_map='auto'"),
    ],
)
def test_devices_that_do_not_fit_are_refused(
    count: int, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
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
    opener = FromDisk(model="a/model", examples=(), criterion="log_likelihood", options=options)
    for device in ((), ("cuda:3",)):
        with pytest.raises(RuntimeError, match="no such model"):
            _Worker(opener, torch.get_num_threads(), *device).do((0, JOBS[0]))
    assert loaded == [options, {**options, "device": "cuda:3"}]


def test_outcomes_are_there_again_to_the_last_bit(tmp_path: Path) -> None:
    path, identity = tmp_path / "new" / "s.state", {"seed": 1, "search": {"factors": (0.5, 1.0)}}
    first = Outcome(score=0.1 + 0.2, right="011", log_likelihood=-1 / 3)
    second = Outcome(score=0.5, right="10")
    outcomes = Outcomes(path, identity)
    outcomes.add("a", first)
    outcomes.add("b", second)
    assert Outcomes(path, identity) == {"a": first, "b": second}
    path.write_bytes(path.read_bytes()[:-3])  # as a search leaves it that is killed
    assert Outcomes(path, identity) == {"a": first}
    with pytest.raises(FileFormatError, match="seed is 1 there and 2 in this run"):
        Outcomes(path, {**identity, "seed": 2})
