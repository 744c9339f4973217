"""What is said about a search before it begins, against what it takes.

The clock of these tests is the tokens that go through the model's first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle.calibration import (
    ChannelSearch,
    Estimate,
    Example,
    LayerSearch,
    RatioSearch,
    Search,
    calibrate,
    cost,
)
from rag_middle.generation import RagMiddleModel

CHANNELS = ChannelSearch(texts=16, tokens=100, top=2, factors=(0.5, -1.0))


@pytest.mark.parametrize(
    "search",
    [
        CHANNELS,
        RatioSearch(ranges=((1.0, 1.5), (1.0, 2.0)), first_layers=(0,)),
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
    monkeypatch.setattr(cost, "perf_counter", lambda: float(tokens))
    said: list[tuple[Estimate, int]] = []
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
    # Started again, what is known is not counted once more.
    assert again.seconds < first.seconds
    assert again == replace(first, seconds=again.seconds, known=again.known)
    assert again.known >= first.candidates * (search.method != "lpes")


def test_workers_share_candidates_and_not_the_texts(
    model: RagMiddleModel, examples: Callable[..., list[Example]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Team:
        """Takes a second for a prompt, however many there are."""

        now = 0.0

        def __init__(self, count: int) -> None:
            self.count = count

        def results(self, jobs: Any) -> list[Any]:
            assert len(jobs) == self.count  # all of them work while one is timed
            Team.now += jobs[0].stop
            return []

    monkeypatch.setattr(cost, "perf_counter", lambda: Team.now)
    made, held_out = examples(10), examples(6, start=50)
    batch_tokens = sum(model.count_tokens(example.prompt) for example in made[:8])
    texts, candidates = 16 * 100 * 8 / batch_tokens, CHANNELS.max_candidates(model) * 10
    for count in (1, 4):
        team: Any = Team(count)
        estimate = cost.estimate_cost(
            model,
            CHANNELS,
            made,
            held_out,
            team,
            criterion="log_likelihood",
            held_out_criterion="exact_match",
        )
        expected = texts + 10 + candidates / count + 2 * 6 / min(2, count)
        assert estimate.seconds == pytest.approx(expected)
