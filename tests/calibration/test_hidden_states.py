"""Mean hidden states, against the model's own list of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rag_middle.calibration import Example, mean_hidden_states, random_texts
from rag_middle.generation import RagMiddleModel
from tests.conftest import FamilyModel


def texts(model: RagMiddleModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 100, (5, 12), generator=generator)


def test_they_are_the_models_own(model: RagMiddleModel) -> None:
    ids = texts(model)
    streamed = mean_hidden_states(model, ids, max_batch_size=2)
    states = model.model(ids, output_hidden_states=True).hidden_states
    # transformers puts the embeddings first and normalises the last layer.
    expected = torch.stack([layer.mean(dim=0) for layer in states[1:-1]])
    torch.testing.assert_close(streamed[:-1], expected, atol=1e-5, rtol=1e-5)
    assert streamed.shape == (4, 12, 64)


@pytest.mark.parametrize("family", ["gpt_neox", "bloom", "gemma2", "qwen3"])
def test_other_families_have_layers_too(
    family: str, family_model: FamilyModel, model: RagMiddleModel
) -> None:
    other = RagMiddleModel(family_model(family), model.tokenizer, self_check=False)
    ids = texts(model)
    states = other.model(ids, output_hidden_states=True).hidden_states
    streamed = mean_hidden_states(other, ids)
    torch.testing.assert_close(streamed[0], states[1].mean(dim=0), atol=1e-5, rtol=1e-5)


def test_no_hook_stays_also_where_the_model_fails(model: RagMiddleModel) -> None:
    def hooks() -> int:  # transformers has some of its own
        return sum(len(module._forward_hooks) for module in model.model.modules())

    before = hooks()
    with pytest.raises(IndexError):
        mean_hidden_states(model, torch.full((1, 4), 10_000))
    mean_hidden_states(model, texts(model))
    assert hooks() == before


def test_texts_are_of_the_documents_and_repeatable(
    model: RagMiddleModel, examples: Callable[..., list[Example]]
) -> None:
    made = examples(6)
    one, again, other = (
        random_texts(model, made, count=3, tokens=50, seed=seed) for seed in (1, 1, 2)
    )
    assert one.shape == (3, 50)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert "is quick" in model.tokenizer.decode(one[0])
