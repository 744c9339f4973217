"""Whoever scores the candidates, the outcomes are the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rag_middle.calibration import (
    ChannelSearch,
    Example,
    ExampleObjective,
    FromDisk,
    Job,
    LayerSearch,
    Race,
    Scoring,
    Search,
    Team,
    calibrate,
    score_group,
    scored,
)
from rag_middle.calibration.jobs import ObjectiveFactory, groups
from rag_middle.calibration.objective import Objective
from rag_middle.errors import ContextOverflowError, MissingExtraError, RagMiddleError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method, PositionalHiddenStates
from rag_middle.workers import InProcess, Processes, RayWorkers, torch_threads

ROOT = Path(__file__).parents[2]

Examples = Callable[..., list[Example]]
SMALL = LayerSearch(population=4, parents=2, mutants=2, crossovers=1, generations=1)
CHANNELS = ChannelSearch(texts=8, tokens=100, top=2, factors=(0.5, -1.0))
#: Scored three at a time: positional hidden states read their prompts once.
SHARING = [
    Job(
        key=str(factor),
        method=PositionalHiddenStates(channels=(3,), factor=factor),
        stop=6,
        group_size=3,
    )
    for factor in (0.5, 0.0, -0.5, -1.0, -2.0)
]
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
    """Opens, and ends its process when it scores."""

    def __call__(self) -> Objective:
        def score(method: Method) -> float:
            os._exit(1)

        return score


def started(kind: str, opening: ObjectiveFactory, count: int) -> Team:
    if kind == "processes":
        return Processes(Scoring(opening), count, 1)
    pytest.importorskip("ray", reason="needs Ray (extra ray)")
    return RayWorkers(Scoring(opening), count, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_several_give_what_one_gives(kind: str, model_folder: Path, examples: Examples) -> None:
    made = examples(6)
    # Weights that were never on disk lie elsewhere in memory, which can move a last digit.
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    here = InProcess(
        partial(score_group, ExampleObjective(model, made, criterion="log_likelihood"))
    )
    with torch_threads(1):  # as many as each worker has: with more, last digits differ
        expected = {job.key: outcome for job, outcome in scored(here, [*JOBS, *SHARING])}
    with closing(started(kind, opening(model_folder, made), 2)) as workers:
        for jobs in (JOBS, SHARING, SHARING[::-1]):  # other jobs together, too
            outcomes = {job.key: outcome for job, outcome in scored(workers, jobs)}
            assert outcomes == {job.key: expected[job.key] for job in jobs}


def test_jobs_are_grouped_where_they_may_be() -> None:
    def keys(jobs: list[Job], workers: int = 1) -> list[str]:
        return [" ".join(job.key for job in group) for group in groups(jobs, workers)]

    assert keys(JOBS) == [job.key for job in JOBS]
    assert keys(SHARING) == ["0.5 0.0 -0.5", "-1.0 -2.0"]
    assert keys(SHARING, workers=3) == ["0.5 0.0", "-0.5 -1.0", "-2.0"]
    assert keys([JOBS[0], *SHARING[:2], replace(SHARING[2], start=1), SHARING[3]]) == [
        "1.0",
        "0.5 0.0",
        "-0.5",
        "-1.0",
    ]
    racing = [replace(job, race=Race(reference="1")) for job in SHARING]
    assert keys(racing) == [job.key for job in SHARING]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_dies_is_told() -> None:
    with (
        closing(Processes(Scoring(Dying()), 1, 1)) as workers,
        pytest.raises(RagMiddleError, match="worker process ended"),
    ):
        list(scored(workers, [Job(key="a", method=LPES(factors=1.1))]))


@dataclass(frozen=True)
class Failing:
    """Cannot be opened, or opens and cannot score."""

    opens: bool

    def __call__(self) -> Objective:
        def score(method: Method) -> float:
            raise ContextOverflowError(prompt_tokens=90, max_new_tokens=20, context_window=100)

        if self.opens:
            return score
        raise MissingExtraError("This model", package="some_package", extra="some")


FAILING: list[tuple[Any, type[Exception], str]] = [
    (Failing(opens=True), ContextOverflowError, "90"),
    (Failing(opens=False), MissingExtraError, "some_package"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_goes_wrong_in_a_worker_is_told_as_it_is() -> None:
    for failing, kind, message in FAILING:
        with (
            closing(Processes(Scoring(failing), 1, 1)) as workers,
            pytest.raises(kind, match=message),
        ):
            list(scored(workers, JOBS))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_goes_wrong_in_a_ray_worker_is_told_as_it_is() -> None:
    pytest.importorskip("ray", reason="needs Ray (extra ray)")
    failing, kind, message = FAILING[1]
    with (
        closing(RayWorkers(Scoring(failing), 1, 1)) as workers,
        pytest.raises(kind, match=message) as caught,
    ):
        list(scored(workers, JOBS))
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("search", [SMALL, CHANNELS], ids=["lpes", "channels"])
def test_ray_workers_give_the_profile_of_one(
    search: Search, model_folder: Path, examples: Examples, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra ray)")
    made, held_out = examples(6), examples(3, start=50)
    # The same files: the profile tells the model that it was made for.
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    alone = calibrate(
        model, search, made, held_out, criterion="log_likelihood", out=tmp_path / "alone.json"
    )
    calibrate(
        model,
        search,
        made,
        held_out,
        criterion="log_likelihood",
        workers=lambda every, _: RayWorkers(Scoring(opening(model_folder, list(every))), 2, 1),
        out=tmp_path / "ray.json",
    )
    assert alone.profile.search["trace"]
    assert (tmp_path / "ray.json").read_bytes() == (tmp_path / "alone.json").read_bytes()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"rag-middle\[ray\]"):
        RayWorkers(opening(tmp_path, []), 2, 1)
