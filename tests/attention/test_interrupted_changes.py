"""Ctrl-C while a model's modules are switched to evaluation leaves every one as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.attention import in_eval_mode, model_traits
from rag_middle.calibration.hidden_states import mean_hidden_states
from rag_middle.evaluation.attention_view import document_attention
from rag_middle.methods.moice.training import train_routers
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

PROMPT = ContextPrompt("Read.", ["A town.", "A river."], "Where?")
EVALUATED = 3  # of the modules, the rest is in training mode


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@contextmanager
def interrupted_at(step: int, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> Iterator[None]:
    """Ctrl-C as the `step`-th module changes its mode, before or after it has done so."""
    change, steps = nn.Module.__setattr__, count()

    def changing(module: nn.Module, name: str, value: Any) -> None:
        due = name == "training" and next(steps) == step
        if due and before:
            raise KeyboardInterrupt
        change(module, name, value)
        if due:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__setattr__", changing)
        yield


@pytest.fixture(scope="module")
def partly_training() -> RagMiddleModel:
    tokenizer = byte_level_bpe()
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), num_hidden_layers=2)
    model = build("interrupted", config, "sdpa").train()
    for module in list(model.modules())[-EVALUATED:]:
        module.training = False
    return RagMiddleModel(model, tokenizer, self_check=False)


@pytest.mark.parametrize("before", [True, False])
def test_whichever_module_was_changing(
    partly_training: RagMiddleModel, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    model = partly_training.model
    expected = modes(model)
    changes = 2 * sum(expected)  # only what is in training mode is touched: there and back
    for step in range(changes):
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted_at(step, monkeypatch, before=before),
            in_eval_mode(model),
        ):
            assert not any(modes(model))
        assert modes(model) == expected
    with interrupted_at(changes, monkeypatch, before=before), in_eval_mode(model):
        pass  # there is no further change


def trained(model: RagMiddleModel) -> None:
    train_routers(model.model, [((5, 6, 7), (8,))], steps=1)


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.generate(PROMPT, max_new_tokens=1),
        lambda model: model.score(PROMPT, " a"),
        lambda model: RagMiddleModel(model.model, model.tokenizer, method="pine"),
        lambda model: document_attention(model, PROMPT),
        lambda model: mean_hidden_states(model, torch.ones(1, 3, dtype=torch.long)),
        trained,
    ],
    ids=["generate", "score", "check", "view", "states", "train"],
)
def test_whoever_changes_modes(
    partly_training: RagMiddleModel,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[RagMiddleModel], object],
) -> None:
    expected = modes(partly_training.model)
    for step in (3, sum(expected) + 3):  # on the way there, and on the way back
        with pytest.raises(KeyboardInterrupt), interrupted_at(step, monkeypatch, before=True):
            use(partly_training)
        assert modes(partly_training.model) == expected


def test_the_first_look_at_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model: PreTrainedModel = build("looked at", tiny(LlamaConfig), "sdpa").train()
    expected = modes(model)
    with pytest.raises(KeyboardInterrupt), interrupted_at(5, monkeypatch, before=True):
        model_traits(model)
    assert modes(model) == expected
