"""Mean hidden states, against the model's own list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rag_middle.calibration import Example, mean_hidden_states, random_texts
from rag_middle.generation import RagMiddleModel


def texts(model: RagMiddleModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 100, (5, 12), generator=generator)


def test_they_are_the_models_own(model: RagMiddleModel) -> None:
    ids = texts(model)
    streamed = mean_hidden_states(model, ids, max_batch_size=2)
    seen: list[Any] = []
    hook = model.model.model.layers[1].register_forward_hook(lambda *call: seen.append(call[2]))
    model.model(ids)
    hook.remove()
    [output] = seen
    expected = (output[0] if isinstance(output, tuple) else output).mean(dim=0)
    torch.testing.assert_close(streamed[1], expected, atol=1e-5, rtol=1e-5)
    assert streamed.shape == (4, 12, 64)


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
