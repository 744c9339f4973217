"""Attention and hidden states with a document perturbed: computed otherwise, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.calibration import mean_hidden_states
from rag_middle.evaluation import KeyValueRetrieval, position
from tests.tiny_models import build, tiny

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
pytest.importorskip("matplotlib")
from rag_middle_reproduce import attention, hidden_states, perturbed_attention
from rag_middle_reproduce.hidden_states import cropped_hidden_states
from rag_middle_reproduce.perturbations import perturbations
from rag_middle_reproduce.perturbed_attention import perturbed_pictures

TASK = KeyValueRetrieval(keys=3, identifier_characters=6)


@pytest.fixture(scope="module")
def eager(model: RagMiddleModel) -> RagMiddleModel:
    """The tiny model with attention that shows its weights."""
    config = tiny(LlamaConfig, vocab_size=len(model.tokenizer), max_position_embeddings=4096)
    return RagMiddleModel(build("evaluation", config, "eager"), model.tokenizer)


def test_attention_with_a_channel_of_the_gold_pair_lowered(eager: RagMiddleModel) -> None:
    changes = perturbations(channel=5, offset=-2.0)
    [picture] = perturbed_pictures(
        eager,
        TASK,
        name="m",
        limit=2,
        positions=(0, 2),
        changes={"channel 5 -2": changes["channel 5 -2"]},
        layers=(1, 2),
    )
    assert list(picture.by_gold) == [0, 2]
    expected = []
    for item in TASK.items(2, 0):
        tokens = eager.encode(TASK.prompt(item, position(2)))
        start, end = tokens.layout.documents[2]

        def lower(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            output[:, start:end, 5] -= 2.0  # noqa: B023 (called within this turn of the loop)
            return output

        hooks = [
            layer.input_layernorm.register_forward_hook(lower) for layer in eager.model.model.layers
        ]
        with torch.no_grad():
            ids = torch.tensor([tokens.input_ids])
            weights = eager.model(input_ids=ids, output_attentions=True).attentions
        for hook in hooks:
            hook.remove()
        last = torch.stack([layer[0, :, -1] for layer in weights[1:]])  # [2, h, l]
        masses = [last[..., slice(*span)].sum(-1) for span in tokens.layout.documents]
        expected.append(torch.stack(masses, dim=-1).numpy())
    drawn = picture.by_gold[2].by_head[:, :, 2:-1]
    assert np.allclose(drawn, np.mean(expected, axis=0), atol=1e-5)


def test_cropped_tokens_have_the_states_of_a_text_of_their_own(model: RagMiddleModel) -> None:
    """They attend to the first token and themselves, at the positions that they have."""
    texts = torch.randint(5, 200, (3, 40), generator=torch.Generator().manual_seed(0))
    hidden = cropped_hidden_states(model, texts, range(20, 30), max_batch_size=2)
    positions = torch.tensor([0, *range(20, 30)])
    with torch.no_grad():
        alone = model.model(
            input_ids=texts[:, positions],
            position_ids=positions.expand(3, -1),
            output_hidden_states=True,
        ).hidden_states
    # The last entry is normalised once more.
    expected = torch.stack(alone[1:-1]).mean(dim=1)
    torch.testing.assert_close(hidden[:-1, positions], expected, atol=1e-5, rtol=0)
    plain = mean_hidden_states(model, texts)
    torch.testing.assert_close(hidden[:, :20], plain[:, :20], atol=1e-5, rtol=0)
    assert (hidden[1, 20:30] - plain[1, 20:30]).abs().max() > 1e-3
    with pytest.raises(ConfigError, match="within texts of 40 tokens"):
        cropped_hidden_states(model, texts, range(30, 41))


def test_tokens_that_are_cropped_are_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hidden_states.main(["--try-out", "--model", "m", "--crop", "3,9"])
    assert "tokens in a row, such as 500-599, got (3, 9)" in capsys.readouterr().err


def test_commands_draw_and_write_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Drawing takes seconds; the commands of the README's table are run with it.
    monkeypatch.setattr(hidden_states, "plot_channels", lambda _, __, path: path.touch())
    monkeypatch.setattr(attention, "image", lambda figure, kind: kind.encode())
    trial = ["--model", "mistralai/Mistral-7B-Instruct-v0.2", "--try-out", "--out", str(tmp_path)]
    perturbed_attention.main([*trial, "--channel", "213", "--layers", "15-20"])
    drawn = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    methods = [*perturbations(channel=3)]
    assert [picture["method"] for picture in drawn] == methods
    assert methods[-1] == "channel 3 -0.3"
    assert "numbers mean nothing" in drawn[0]["note"]
    assert np.shape(drawn[0]["documents"]["2"])[-1] == 3
    perturbed_attention.main([*trial, "--channel", "213", "--document", "25"])
    again = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    for picture, other in zip(drawn, again, strict=True):
        # Pair 1 is perturbed now, the gold one is 0 or 2.
        assert (picture == other) == (picture["method"] == "as it is")
    hidden_states.main([*trial, "--crop", "500-599"])
    numbers = json.loads((tmp_path / "channels.json").read_text(encoding="utf-8"))
    assert numbers["crop"] == [*range(100, 120)]
    for channel, layers in numbers["channels"].items():
        for layer, values in layers.items():
            cropped = numbers["channels_cropped"][channel][layer]
            assert cropped[:100] == pytest.approx(values[:100], abs=1e-3)
            assert cropped[100:120] != pytest.approx(values[100:120], abs=1e-3)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert {"channels.png", "channels_cropped.png"} < pictures
    assert len(pictures) == len(methods) + 2
