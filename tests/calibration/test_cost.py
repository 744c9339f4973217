"""What is said about a search before it begins, against what it takes.

The clock of these tests is the tokens that go through the model's first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, PreTrainedTokenizerFast

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
from tests.tiny_models import build, tiny
from tests.tokenizers import CHATML, byte_level_bpe

Examples = Callable[..., list[Example]]


@dataclass
class Clock:
    tokens: int = 0
    handle: Any = None

    def watch(self, model: Any) -> None:
        def count(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            self.tokens += hidden.shape[0] * hidden.shape[1]

        self.handle = model.model.layers[0].register_forward_pre_hook(count, with_kwargs=True)

    def __call__(self) -> float:
        return float(self.tokens)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(cost, "perf_counter", made)
    yield made
    made.handle.remove()


CHANNELS = ChannelSearch(texts=16, tokens=100, top=2, factors=(0.5, -1.0))


def estimated(
    search: Search, model: RagMiddleModel, clock: Clock, examples: Examples
) -> tuple[Estimate, int]:
    """What is said, and the tokens that are read from then on."""
    estimates: list[tuple[Estimate, int]] = []
    calibrate(
        model,
        search,
        examples(8),
        examples(6, start=50),
        estimated=lambda made: estimates.append((made, clock.tokens)),
    )
    [(expected, then)] = estimates
    return expected, clock.tokens - then


@pytest.mark.parametrize(
    "search",
    [
        CHANNELS,
        RatioSearch(ranges=((1.0, 1.5), (1.0, 2.0)), first_layers=(0,)),
        LayerSearch(population=5, parents=3, mutants=3, crossovers=0, generations=2, racing=False),
    ],
    ids=lambda search: search.method,
)
@pytest.mark.one_in(3)
def test_a_search_takes_what_was_said(
    search: Search, model: RagMiddleModel, clock: Clock, examples: Examples
) -> None:
    clock.watch(model.model)
    expected, took = estimated(search, model, clock, examples)
    assert expected.seconds is not None
    # Prompts differ in length.
    assert expected.seconds == pytest.approx(took, rel=0.25)


def test_candidates_that_share_prompts_are_not_counted_as_if_they_did_not(
    tokenizer: PreTrainedTokenizerFast, clock: Clock, examples: Examples
) -> None:
    seconds = {}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "sharing": (LlamaConfig, {}),
        "alone": (MistralConfig, {"sliding_window": 8}),
    }
    for name, (kind, options) in kinds.items():
        inner = build(name, tiny(kind, vocab_size=len(tokenizer), **options), "sdpa")
        model = RagMiddleModel(inner, tokenizer)
        clock.watch(inner)
        pace = cost.measure_pace(model, CHANNELS, examples(8), "log_likelihood")
        clock.handle.remove()
        seconds[name] = pace.candidate / pace.unmodified
    assert seconds["alone"] == pytest.approx(1.0)
    assert seconds["sharing"] < 0.4


def test_workers_share_candidates_and_not_the_texts(
    model: RagMiddleModel, examples: Examples
) -> None:
    pace = cost.Pace(unmodified=2.0, held_out=3.0, candidate=1.0, token=0.01)

    made = examples(10)

    def seconds(workers: int) -> float | None:
        return cost.estimate_cost(
            model, CHANNELS, made, "log_likelihood", pace, held_out=5, workers=workers
        ).seconds

    texts, candidates, check = 16 * 100 * 0.01, CHANNELS.max_candidates(model) * 10, 2 * 5 * 3.0
    before = texts + 10 * 2.0  # one worker scores the unmodified model, the others wait
    assert seconds(1) == pytest.approx(before + candidates + check)
    assert seconds(4) == pytest.approx(before + candidates / 4 + check / 2)


def test_a_check_by_generated_answers_takes_longer_than_a_search_by_likelihood(
    model: RagMiddleModel, clock: Clock, examples: Examples
) -> None:
    clock.watch(model.model)
    pace = cost.measure_pace(
        model, CHANNELS, examples(8), "log_likelihood", held_out_criterion="generated_answer"
    )
    assert pace.held_out > 1.01 * pace.unmodified


@pytest.mark.slow
def test_candidates_of_many_workers_share_less(
    model: RagMiddleModel, clock: Clock, examples: Examples
) -> None:
    clock.watch(model.model)
    one, many = (
        cost.measure_pace(model, CHANNELS, examples(8), "log_likelihood", workers=workers)
        for workers in (1, 100)
    )
    assert many.candidate > 2 * one.candidate


def test_of_a_search_that_is_known_in_part_no_time_is_said(
    model: RagMiddleModel, examples: Examples, tmp_path: Path
) -> None:
    estimates: list[Estimate] = []
    for _ in range(2):
        calibrate(
            model,
            CHANNELS,
            examples(4),
            state=tmp_path / "s.state",
            estimated=estimates.append,
        )
    assert [estimate.seconds is None for estimate in estimates] == [False, True]


@pytest.mark.parametrize(
    ("options", "criterion", "noted"),
    [
        ({}, "generated_answer", False),
        ({"criterion": "exact_match"}, "exact_match", True),
        ({"template": "raw"}, "exact_match", False),
    ],
)
@pytest.mark.slow
def test_a_model_with_a_chat_template_is_compared_by_what_it_writes(
    options: dict[str, Any], criterion: str, noted: bool, llama: Any, examples: Examples
) -> None:
    chatting = RagMiddleModel(llama, byte_level_bpe(bos=True, chat_template=CHATML))
    estimates: list[Estimate] = []
    search = LayerSearch(population=3, parents=2, mutants=1, crossovers=0, generations=0)
    calibration = calibrate(chatting, search, examples(4), estimated=estimates.append, **options)
    assert calibration.profile.search["criterion"] == estimates[0].criterion == criterion
    assert estimates[0].questions == 2
    assert ("Compare by generated_answer" in (estimates[0].note or "")) is noted
