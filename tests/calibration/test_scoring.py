"""Whoever scores, the outcomes are the same; and what is known survives an interruption."""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from rag_middle.calibration.objective import Outcome
from rag_middle.calibration.scoring import Outcomes, ScoringJob
from rag_middle.errors import ContextOverflowError, FileFormatError, MissingExtraError
from rag_middle.methods import LPES, PositionalHiddenStates
from rag_middle.workers import Processes, RayWorkers

JOBS = [ScoringJob(method=LPES(factors=factor)) for factor in (1.0, 1.1, 1.3, 1.7)] + [
    ScoringJob(method=PositionalHiddenStates(channels=(3,), factor=-1.0), start=1, stop=5)
]

# -- workers ---------------------------------------------------------------------------------------


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


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"rag-middle\[ray\]"):
        RayWorkers(Failing(opens=True), 2, 1)


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
