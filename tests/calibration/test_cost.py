"""What is said about a search before it begins, against what it takes.

The clock of these tests is the tokens that go through the model's first layer.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle.calibration import (
    ChannelSearch,
    Example,
    LayerSearch,
    RatioSearch,
    Search,
    SearchCost,
    calibrate,
)
from rag_middle.generation import RagMiddleModel

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "search",
    [
        RatioSearch(ranges=((1.0, 1.5), (1.0, 2.0)), first_layers=(0,)),
        ChannelSearch(texts=1, tokens=20, top=2, factors=(0.5, -1.0)),
        LayerSearch(population=5, parents=3, mutants=3, crossovers=0, generations=2),
    ],
    ids=lambda search: search.method,
)
@pytest.mark.one_in(3)
def test_a_search_takes_what_was_said(
    search: Search,
    model: RagMiddleModel,
    examples: Callable[..., list[Example]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tokens = 0

    def count(_layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal tokens
        hidden = args[0] if args else kwargs["hidden_states"]
        tokens += hidden.shape[0] * hidden.shape[1]

    handle = model.model.model.layers[0].register_forward_pre_hook(count, with_kwargs=True)
    monkeypatch.setattr("time.perf_counter", lambda: float(tokens))
    said: list[tuple[SearchCost, int]] = []
    ends: list[int] = []
    for _ in range(2):
        calibrate(
            model,
            search,
            examples(8),
            examples(6, start=50),
            state=tmp_path / "s.state",
            estimated=lambda made: said.append((made, tokens)),
        )
        ends.append(tokens)
    handle.remove()
    (first, before), (again, _) = said
    assert first.seconds == pytest.approx(ends[0] - before, rel=0.25)  # prompts differ in length
    assert again == replace(first, seconds=0, known=again.known)  # everything is known
    assert first.scores * (search.method != "lpes") <= again.known <= first.scores


def test_workers_share_the_candidates(
    model: RagMiddleModel, examples: Callable[..., list[Example]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Team:
        """Takes a second for a prompt, however many workers there are."""

        now = 0.0

        def __init__(self, count: int) -> None:
            self.count = count

        def results(self, jobs: Any) -> list[Any]:
            assert len(jobs) == self.count  # all of them work while one is timed
            Team.now += jobs[0].stop
            return []

        def close(self) -> None:
            raise InterruptedError  # the search itself is not wanted

    monkeypatch.setattr("time.perf_counter", lambda: Team.now)
    made, said = (examples(10), examples(6, start=50)), list[SearchCost]()
    for count in (1, 4):
        team: Any = Team(count)
        with pytest.raises(InterruptedError):
            calibrate(
                model,
                RatioSearch(),
                *made,
                workers=lambda *_, team=team: team,
                estimated=said.append,
            )
    candidates = 1 + RatioSearch().max_candidates(model)
    assert [estimate.seconds for estimate in said] == [
        candidates * 10 + 2 * 6,
        candidates * 10 / 4 + 2 * 6 / 2,
    ]
