"""The search for a channel without monotonicity, smoothness or validation."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.calibration import calibrate
from rag_middle.calibration import channels as searching
from rag_middle.evaluation import KeyValueRetrieval

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce import channel_search
from rag_middle_reproduce.channel_search import PartialChannelSearch, main, searched_methods

SEARCH = PartialChannelSearch(texts=2, tokens=60, top=2, factors=(0.5, -1.0))


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


@pytest.mark.parametrize(
    ("without", "channels"),
    # 9 drifts in two layers of four, 7 in none; still channels are no candidates at all.
    [(None, [9, 5]), ("smoothness", [2, 5]), ("monotonicity", [5, 7])],
)
def test_candidates_without_a_part(
    without: Literal["monotonicity", "smoothness"] | None, channels: list[int]
) -> None:
    search = PartialChannelSearch(without=without, top=2)
    chosen = search.channels(made_up())
    assert [channel.channel for channel in chosen] == channels
    if without == "monotonicity":
        assert all(channel.layers == (0, 1, 2, 3) for channel in chosen)
        whole = PartialChannelSearch(without=without, top=64).channels(made_up())
        assert {channel.channel for channel in whole} == {2, 5, 7, 9}


def test_each_search_is_validated_and_the_last_takes_the_smoothest(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "mean_hidden_states", lambda *_, **__: made_up())
    monkeypatch.setattr(searching, "layer_ranges", lambda _: [(1, 2)])
    asked: list[Any] = []

    def prefers_the_second(model: Any, search: Any, examples: Any, **_: Any) -> Any:
        """Of the candidates; and the factor of 0.5."""
        asked.append([example.position for example in examples])
        second = search.channels(made_up())[1].channel
        return calibrate(
            model,
            search,
            examples,
            objective=lambda method: float(
                vars(method).get("channels") == (second,) and vars(method)["factor"] == 0.5
            ),
        )

    monkeypatch.setattr(channel_search, "calibrate", prefers_the_second)
    task = KeyValueRetrieval(keys=3, identifier_characters=6)
    methods = searched_methods(model, SEARCH, task, questions=3)
    assert [row.label for row in methods] == [
        "none",
        "all parts: 5 x 0.5 in layers 1-2",
        "without monotonicity: 7 x 0.5 in layers 1-2",
        "without smoothness: 5 x 0.5 in layers 1-2",
        "without validation: 9 x 0.5 in layers 1-2",
    ]
    assert asked == [[0, 1, 2] * 3] * 3
    monkeypatch.setattr(searching, "mean_hidden_states", lambda *_, **__: torch.zeros(4, 60, 64))
    with pytest.raises(ConfigError, match="read more texts"):
        searched_methods(model, SEARCH, task, questions=3)


@pytest.mark.slow
def test_the_command_tries_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--try-out", "--model", "lmsys/vicuna-7b-v1.5-16k"])
    rows = capsys.readouterr().out.splitlines()
    parts = ["all parts", "without monotonicity", "without smoothness", "without validation"]
    assert [row.partition(":")[0] for row in rows[3:]] == [f"| {part}" for part in parts]
