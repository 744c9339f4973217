"""Whoever scores the candidates, the outcomes are the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from rag_middle.calibration import (
    Example,
    ExampleObjective,
    FromDisk,
    InProcess,
    Job,
    LayerSearch,
    Processes,
    RayWorkers,
    calibrate,
)
from rag_middle.calibration.objective import Objective
from rag_middle.errors import MissingExtraError, WorkerError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method

Examples = Callable[..., list[Example]]
SMALL = LayerSearch(population=4, parents=2, mutants=2, crossovers=1, generations=1)
JOBS = [Job(key=str(f), method=LPES(factors=f), stop=6) for f in (1.0, 1.1, 1.3, 1.7)]


def opening(folder: Path, examples: list[Example]) -> FromDisk:
    return FromDisk(
        model=str(folder),
        examples=tuple(examples),
        criterion="log_likelihood",
        options={"device": "cpu"},
    )


@dataclass(frozen=True)
class Dying:
    """Opens, and ends its process when it scores, as long as a file has lives left."""

    lives: Path

    def __call__(self) -> Objective:
        def score(method: Method) -> float:
            left = int(self.lives.read_text())
            if left:
                self.lives.write_text(str(left - 1))
                os._exit(1)
            assert isinstance(method, LPES)
            assert isinstance(method.factors, float)
            return method.factors

        return score


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_give_what_one_gives(model_folder: Path, examples: Examples) -> None:
    made = examples(6)
    # Weights that were never on disk lie elsewhere in memory, which can move a last digit.
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    here = InProcess(ExampleObjective(model, made, criterion="log_likelihood"))
    expected = {job.key: outcome for job, outcome in here.outcomes(JOBS)}
    with closing(Processes(opening(model_folder, made), 2, 1)) as workers:
        assert {job.key: outcome for job, outcome in workers.outcomes(JOBS)} == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("2")
    jobs = [Job(key=str(f), method=LPES(factors=f)) for f in (1.1, 1.2, 1.3)]
    with closing(Processes(Dying(lives), 1, 1)) as workers:
        found = {job.key: outcome.score for job, outcome in workers.outcomes(jobs)}
    assert found == {"1.1": 1.1, "1.2": 1.2, "1.3": 1.3}
    assert lives.read_text() == "0"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_die_again_and_again_are_given_up(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("100")
    with (
        closing(Processes(Dying(lives), 1, 1)) as workers,
        pytest.raises(WorkerError, match="3 times in a row"),
    ):
        list(workers.outcomes([Job(key="a", method=LPES(factors=1.1))]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ray_workers_give_the_profile_of_one(
    model_folder: Path, examples: Examples, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    made, held = examples(6), examples(3, start=50)
    # The same files: the profile tells the model that it was made for.
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    alone = calibrate(
        model, SMALL, made, held, criterion="log_likelihood", out=tmp_path / "alone.json"
    )
    calibrate(
        model,
        SMALL,
        made,
        held,
        criterion="log_likelihood",
        workers=lambda every, _: RayWorkers(opening(model_folder, list(every)), 2, 1),
        out=tmp_path / "ray.json",
    )
    assert alone.profile.search["trace"]
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"rag-middle\[ray\]"):
        RayWorkers(opening(tmp_path, []), 2, 1)
