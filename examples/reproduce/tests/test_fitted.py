"""Channels, tokens and factors that are found in a model; hidden states that are perturbed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rag_middle_reproduce import fitted
from rag_middle_reproduce.fitted import (
    ChannelFit,
    FactorsByGradient,
    InitialTokenFit,
    RandomFactors,
)
from rag_middle_reproduce.states import (
    cropped_hidden_states,
    drift_taken_back,
    moved_hidden_states,
)
from torch import Tensor

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.calibration import mean_hidden_states
from rag_middle.evaluation import KeyValueRetrieval, MultiDocumentQA
from rag_middle.evaluation.conditions import position
from rag_middle.methods import LPES, SIW, PositionalHiddenStates
from rag_middle.passages import passages_path

TASK = KeyValueRetrieval(keys=3, identifier_characters=6)
FIT = ChannelFit(label="a", factor=0.5, layers=(1, 2), texts=2, tokens=60, questions=1, pairs=5)


def made_up() -> Tensor:
    """In four layers, 7 turns once, 5 falls, 2 rises and wavers, 9 falls in the first two.

    The other channels stand still.
    """
    hidden, x = torch.zeros(4, 60, 64), torch.linspace(0, 1, 60)
    hidden[..., 7] = 4 * (x - 0.5) ** 2
    hidden[..., 5] = -x - x**2
    hidden[..., 2] = x + 0.3 * torch.sin(60 * x)
    hidden[:2, :, 9] = -(x**2)
    hidden[2:, :, 9] = torch.sin(40 * x)
    return hidden


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("without", "candidates", "chosen"),
    # 9 drifts in two layers of four, 7 in none; still channels are no candidates at all. Validation
    # prefers 2, of two channels then 5.
    [
        (None, (9, 5, 2), 2),
        ("smoothness", (9, 5, 2), 2),
        ("monotonicity", (5, 7, 2, 9), 2),
        ("validation", (9, 5, 2), 9),
    ],
)
@pytest.mark.one_in(4)
def test_a_channel_without_a_part_of_its_search(
    without: Any,
    candidates: tuple[int, ...],
    chosen: int,
    model: RagMiddleModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = ChannelFit(**{**vars(FIT), "without": without})
    assert fit.candidates(made_up()) == candidates
    monkeypatch.setattr(fitted, "mean_hidden_states", lambda *_: made_up())
    monkeypatch.setattr(
        ChannelFit, "_likelihood", lambda self, model, channel: -abs(channel - 3) - channel / 10
    )
    assert fit.method(model, TASK) == PositionalHiddenStates(
        channels=(chosen,), factor=0.5, layers=(1, 2)
    )
    two = ChannelFit(**{**vars(FIT), "channels": 2}).method(model, TASK)
    assert vars(two)["channels"] == (2, 5)
    monkeypatch.setattr(fitted, "mean_hidden_states", lambda *_: torch.zeros(4, 60, 64))
    with pytest.raises(ConfigError, match="read more texts"):
        fit.method(model, TASK)


def test_ten_channels_that_drift_in_most_layers_come_before_smoother_ones() -> None:
    hidden, x = torch.zeros(4, 60, 16), torch.linspace(0, 1, 60)
    for channel in range(12):
        drifting = slice(0, 2 if channel == 11 else 4)
        wave = 0 if channel == 11 else 0.01 * (channel + 1) * torch.sin(60 * x)
        hidden[drifting, :, channel] = x + wave
    fit = ChannelFit(**{**vars(FIT), "without": "validation"})
    assert fit.candidates(hidden)[0] == 0
    assert len(fit.candidates(hidden)) == 10
    assert 11 not in fit.candidates(hidden)
    assert FIT.candidates(hidden)[0] == 11


def test_the_initial_token_of_siw_is_the_first_sign_of_its_kind(model: RagMiddleModel) -> None:
    method = InitialTokenFit(label="colon", text=":").method(model, TASK)
    assert isinstance(method, SIW)
    [item] = TASK.items(1, 0)
    ids = model.encode(TASK.prompt(item, position(0))).input_ids
    assert ":" in model.tokenizer.decode([ids[method.token]])
    assert ":" not in model.tokenizer.decode([*ids[: method.token]])
    with pytest.raises(ConfigError, match="at one place in all prompts"):
        InitialTokenFit(label="none", text="§").method(model, TASK)


def test_factors_follow_the_gradient_of_the_loss(model: RagMiddleModel) -> None:
    """One step of Adam moves every factor by its rate, against the sign of the derivative."""
    fit = FactorsByGradient(label="g", samples=2, batch_size=2, epochs=1, learning_rate=1e-3)
    before = [parameter.grad for parameter in model.model.parameters()]
    method = fit.method(model, TASK)
    assert isinstance(method, LPES)
    assert isinstance(method.factors, tuple)
    steps = torch.tensor(method.factors) - 1
    assert steps.abs().tolist() == pytest.approx([1e-3] * len(steps), rel=1e-2)
    assert [parameter.grad for parameter in model.model.parameters()] == before


def test_perturbed_tokens_have_the_states_of_a_text_of_their_own(model: RagMiddleModel) -> None:
    text = torch.randint(5, 200, (40,), generator=torch.Generator().manual_seed(0))
    hidden = cropped_hidden_states(model, text, range(20, 30))
    seen = torch.tensor([0, *range(20, 30)])
    with torch.no_grad():
        alone = model.model(
            input_ids=text[None, seen], position_ids=seen[None], output_hidden_states=True
        ).hidden_states
    # The last entry is normalised once more.
    expected = torch.cat(alone[1:-1])
    torch.testing.assert_close(hidden[:-1, seen], expected, atol=1e-5, rtol=0)
    plain = mean_hidden_states(model, text[None])
    moved = moved_hidden_states(model, text, range(20, 30), shift=0)
    torch.testing.assert_close(moved, plain, atol=1e-5, rtol=0)
    moved = moved_hidden_states(model, text, range(20, 30), shift=15)
    for states in (hidden, moved):
        torch.testing.assert_close(states[:, :20], plain[:, :20], atol=1e-5, rtol=0)
        assert (states[1, 20:30] - plain[1, 20:30]).abs().max() > 1e-3


def test_drift_that_perturbations_take_back_has_an_interval_over_texts() -> None:
    """A channel that rises by one a token, in two layers, and half as much in the last text."""
    rise = torch.arange(60.0).expand(4, 2, 60) * torch.tensor([1, 1, 1, 0.5])[:, None, None]
    flat, half = rise.clone(), rise.clone()
    flat[..., 40:50] = rise[..., 10:20]
    half[:3, :, 40:50] -= 15  # half of the rise, and nothing in the last text
    states = {"hidden states": rise, "flat": flat, "half": half}
    taken = drift_taken_back(3, states, range(40, 50), skip=10).numbers["taken_back"]
    assert taken["flat"] == pytest.approx([1, 1, 1])
    value, low, high = taken["half"]
    assert value == pytest.approx(45 / 105)
    assert low < value < high <= 0.5


def test_drawn_factors_are_the_best_of_their_draws(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class LowestSum:
        def __init__(self, _model: RagMiddleModel, examples: list[Any], **_: Any) -> None:
            assert len({example.question for example in examples}) == 4
            assert len(examples[0].prompt.documents) == 2

        def __call__(self, method: Any) -> float:
            seen.append(method)
            return -float(sum(method.factors))

    monkeypatch.setattr(fitted, "ExampleObjective", LowestSum)
    task = MultiDocumentQA(data=passages_path(), documents=3)
    fit = RandomFactors(label="a", tried=3, questions=4, held_out=2, documents=2)
    chosen = fit.method(model, task)
    assert chosen == min(seen, key=lambda method: sum(method.factors))
    assert len(seen) == 3
    assert all(1 <= f <= 2 for method in seen for f in method.factors)
