"""Whoever scores the candidates, the outcomes are the same."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
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
    Outcome,
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
from rag_middle.errors import ContextOverflowError, MissingExtraError, WorkerError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method, PositionalHiddenStates
from rag_middle.workers import InProcess, Processes, RayWorkers, torch_threads
from rag_middle.workers.processes import _interrupts_blocked

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


@dataclass(frozen=True)
class DyingOnce:
    """Opens from disk, and ends its process in the middle of the first group that it scores."""

    opening: FromDisk
    spared: Path

    def __call__(self) -> ExampleObjective:
        objective = self.opening()
        score = objective.outcomes

        def outcomes(*args: Any, **options: Any) -> list[Outcome]:
            scored = score(*args, **options)
            if not self.spared.exists():
                self.spared.touch()
                os._exit(1)
            return scored

        objective.outcomes = outcomes  # type: ignore[method-assign]
        return objective


def started(kind: str, opening: ObjectiveFactory, count: int) -> Team:
    if kind == "processes":
        return Processes(Scoring(opening), count, 1)
    pytest.importorskip("ray", reason="needs Ray (extra ray)")
    return RayWorkers(Scoring(opening), count, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_several_give_what_one_gives_even_where_one_of_them_dies(
    kind: str, model_folder: Path, examples: Examples, tmp_path: Path
) -> None:
    made = examples(6)
    # Weights that were never on disk lie elsewhere in memory, which can move a last digit.
    model = RagMiddleModel.from_pretrained(model_folder, device="cpu")
    here = InProcess(
        partial(score_group, ExampleObjective(model, made, criterion="log_likelihood"))
    )
    with torch_threads(1):  # as many as each worker has: with more, last digits differ
        expected = {job.key: outcome for job, outcome in scored(here, [*JOBS, *SHARING])}
    dying = DyingOnce(opening(model_folder, made), tmp_path / "spared")
    with closing(started(kind, dying, 2)) as workers:
        for jobs in (JOBS, SHARING, SHARING[::-1]):  # other jobs together, too
            outcomes = {job.key: outcome for job, outcome in scored(workers, jobs)}
            assert outcomes == {job.key: expected[job.key] for job in jobs}
    assert dying.spared.exists()


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
def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("2")
    jobs = [Job(key=str(f), method=LPES(factors=f)) for f in (1.1, 1.2, 1.3)]
    with closing(Processes(Scoring(Dying(lives)), 1, 1)) as workers:
        scores = {job.key: outcome.score for job, outcome in scored(workers, jobs)}
    assert scores == {"1.1": 1.1, "1.2": 1.2, "1.3": 1.3}
    assert lives.read_text() == "0"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_die_again_and_again_are_given_up(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("100")
    with (
        closing(Processes(Scoring(Dying(lives)), 1, 1)) as workers,
        pytest.raises(WorkerError, match="3 times in a row"),
    ):
        list(scored(workers, [Job(key="a", method=LPES(factors=1.1))]))


class UnreadableError(Exception):
    """Cannot be read back from a pickle."""

    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")


@dataclass(frozen=True)
class FailingUnreadably:
    def __call__(self) -> Objective:
        raise UnreadableError(status=503)


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
    (FailingUnreadably(), WorkerError, r"(?s)UnreadableError: status 503.*Traceback"),
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
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    pid_file = tmp_path / "worker"
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.calibration.endless_search", str(pid_file)], cwd=ROOT
    )
    try:
        _wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    finally:
        parent.kill()
        parent.wait()
    worker = int(pid_file.read_text())
    _wait_until(lambda: not _alive(worker))


def _wait_until(happened: Callable[[], bool], seconds: float = 300) -> None:
    # Long enough for a machine that is busy with other things: starting Python may take a minute.
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        # A process that nobody waited for is dead, and still there.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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


def test_an_interrupt_that_another_thread_takes_waits_too() -> None:
    asleep = threading.Event()
    other = threading.Thread(target=asleep.wait)
    other.start()
    finished = []

    def interrupted() -> None:
        with _interrupts_blocked():
            assert other.ident is not None
            signal.pthread_kill(other.ident, signal.SIGINT)
            asleep.set()
            other.join()
            finished.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert finished


class Echo:
    """Does tasks by giving them back."""

    def __call__(self) -> Callable[[Any], Any]:
        return str


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no Ctrl-C to a process here")
def test_ctrl_c_between_tasks_ends_no_process_that_may_hold_a_lock() -> None:
    """Its end would leave the lock of the queue taken, and the others waiting for ever."""
    workers: Processes[int, str] = Processes(Echo(), 1, 1)
    before = set(multiprocessing.active_children())
    with closing(workers):
        assert dict(workers.results([1])) == {0: "1"}
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(1)
        assert process.is_alive()
        # At the next task it ends, and another one does it.
        assert dict(workers.results([2])) == {0: "2"}
        assert not process.is_alive()
