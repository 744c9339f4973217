"""Channels by statistics, two at once, and the effect of a channel by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.calibration import ChannelSearch
from rag_middle.evaluation import KeyValueRetrieval, Measurement, position, run
from rag_middle.methods import PositionalHiddenStates
from tests.methods.against_naive import assert_equal_to_naive
from tests.reference.positional_hidden_states import NaivePositionalHiddenStates

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce import channels
from rag_middle_reproduce.channels import (
    channels_by_statistics,
    layer_methods,
    main,
    markdown,
    table_methods,
)

TASK = KeyValueRetrieval(keys=3, identifier_characters=6)
SEARCH = ChannelSearch(texts=2, tokens=60)


def test_the_smoothest_channels_are_chosen_without_any_answer(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channel 5 falls in a straight line, channel 2 rises and wavers, the others stand still."""
    seen: list[tuple[int, ...]] = []

    def made_up(_model: RagMiddleModel, texts: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(texts.shape))
        hidden = torch.zeros(3, 60, 8)
        x = torch.arange(60.0)
        hidden[..., 5], hidden[..., 2] = -x, x + torch.sin(3 * x)
        return hidden

    monkeypatch.setattr(channels, "mean_hidden_states", made_up)
    assert channels_by_statistics(model, TASK, SEARCH, questions=2) == (5, 2)
    assert seen == [(2, 60)]
    monkeypatch.setattr(channels, "mean_hidden_states", lambda *_: torch.zeros(3, 60, 8))
    with pytest.raises(ConfigError, match="read more texts"):
        channels_by_statistics(model, TASK, SEARCH, questions=2)


def test_rows_of_the_table() -> None:
    def rows(*arguments: Any) -> dict[str, Any]:
        methods = table_methods(*arguments, factor=0.5, layers=(1, 2))
        assert methods[0].label == "none"
        return {row.label: vars(row.method)["channels"] for row in methods[1:]}

    assert rows((5, 2), ()) == {"without validation: 5": (5,), "two channels: 5, 2": (5, 2)}
    without = {"without validation: 5": (5,)}
    assert rows((5, 2), (2,)) == {"channel 2": (2,), **without, "two channels: 2, 5": (2, 5)}
    assert rows((5, 2), (2, 7)) == {"channel 2": (2,), **without, "two channels: 2, 7": (2, 7)}
    assert rows((5,), ()) == without


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_two_channels_are_scaled_at_once(name: str, family_model: Callable[..., Any]) -> None:
    assert_equal_to_naive(
        family_model(name),
        PositionalHiddenStates(channels=(3, 7), factor=-1.0, layers=(0, 1)),
        NaivePositionalHiddenStates,
        channels=(3, 7),
        factor=-1.0,
        changed_layers=(0, 1),
    )


def test_the_effect_by_layer_is_the_likelihood_of_the_answer(model: RagMiddleModel) -> None:
    methods = layer_methods(3, factor=-1.0, layers=(0, 2))
    measurement = Measurement(
        limit=2, positions=(0, 2), scoring="likelihood", metric="log_likelihood"
    )
    curves = run(model, TASK, methods, measurement).curves()
    assert curves.labels == ("none", "layer 0", "layer 2")
    items = TASK.items(2, 0)
    for layer in (0, 2):
        scaled = PositionalHiddenStates(channels=(3,), factor=-1.0, layers=(layer,))
        for at, estimate in zip((0, 2), curves[f"layer {layer}"].estimates, strict=True):
            totals = []
            for item in items:
                prompt, answer = TASK.prompt(item, position(at)), TASK.target(item, position(at))
                spaced = answer if prompt.suffix[-1:].isspace() else f" {answer}"
                totals.append(model.score(prompt, spaced, method=scaled).total)
            assert estimate.value == pytest.approx(sum(totals) / 2, abs=1e-4)
    assert curves["layer 0"].mean.value != curves["layer 2"].mean.value
    last = markdown(curves).splitlines()[-1]
    assert last.startswith(f"| layer 2 | {curves['layer 2'].estimates[0].value:.2f} |")


@pytest.mark.parametrize(
    ("more", "row"),
    [
        ("", "| without validation: "),
        ("--by factor --channel 2393", "| x -1 |"),
        ("--by layer --channel 2393", "| layer 1 |"),
    ],
)
@pytest.mark.one_in(3)
def test_the_command_tries_out(more: str, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--try-out", *more.split()])
    out = capsys.readouterr().out
    assert "by gold position (0-based) | 0 | 2 | mean |" in out
    assert row in out
