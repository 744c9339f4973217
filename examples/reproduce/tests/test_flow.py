"""Information flow against finite differences of a decoder written out in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rag_middle_reproduce.flow import InitialTokenView, flow_by_layer, saliency
from torch import Tensor

from rag_middle import PromptError, RagMiddleModel
from rag_middle.layout import PromptLayout
from tests.reference.llama import NaiveLlama
from tests.tokenizers import byte_level_bpe

IDS, ANSWER = [1, 9, 4, 12, 7, 5], [8, 3]


@dataclass
class _Scaled(NaiveLlama):
    """One layer's weights from one token to another are scaled alike in all heads."""

    layer: int = 0
    pair: tuple[int, int] = (0, 0)
    factor: float = 1.0

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        if layer != self.layer:
            return super().attention(layer, hidden)
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        out = []
        for head in range(self.heads):
            keys = self.rotated(k[self.group(head)], positions)
            weights = self.weights_of(self.rotated(q[head], positions), keys)
            weights[self.pair] *= self.factor
            out.append(weights @ v[self.group(head)])
        return torch.stack(out)


def _loss(network: Any, **scaled: Any) -> float:
    config = network.config
    twin = _Scaled(
        weights={name: value.double() for name, value in network.state_dict().items()},
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        theta=config.rope_parameters["rope_theta"],
        eps=config.rms_norm_eps,
        prompt_tokens=len(IDS),
        **scaled,
    )
    steps = twin.logits(torch.tensor(IDS + ANSWER[:-1])).log_softmax(-1)
    return -sum(float(steps[len(IDS) - 1 + at, token]) for at, token in enumerate(ANSWER))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_saliency_is_the_change_of_the_loss_with_a_weight(
    name: str, family_model: Callable[..., Any]
) -> None:
    network = family_model(name, "eager")
    model = RagMiddleModel(network, byte_level_bpe(bos=True), self_check=False)
    flow = saliency(model, IDS, ANSWER)
    assert flow.shape == (network.config.num_hidden_layers, 7, 7)
    assert not flow.triu(1).any()
    step = 1e-4
    for layer in range(flow.shape[0]):
        for pair in [(0, 0), (3, 0), (5, 2), (6, 6)]:
            up, down = (
                _loss(network, layer=layer, pair=pair, factor=1 + sign * step) for sign in (1, -1)
            )
            expected = abs(up - down) / (2 * step)
            assert float(flow[layer][pair]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_groups_of_pairs_by_hand() -> None:
    """Two tokens, documents of two tokens, two more; one token of the answer, and one behind it."""
    flow = torch.arange(49.0).view(1, 7, 7)
    groups = flow_by_layer(flow, PromptLayout(6, ((2, 3), (3, 4))))
    means = {name: values.item() for name, values in groups.items()}
    rows = (flow[0, 5] + flow[0, 6]) / 2
    assert means == {
        "documents": float(rows[[2, 3]].mean()),
        "instruction": pytest.approx(float(rows[[0, 1, 4]].mean())),
        "initial token": float(rows[0]),
    }
    with pytest.raises(PromptError, match="mark some"):
        flow_by_layer(flow, PromptLayout(6, ()))


def test_attention_to_the_initial_token_is_the_models_own(model: RagMiddleModel) -> None:
    [table] = InitialTokenView(places=(0, 9), tokens=20, texts=1).shown(model, [], [])
    draw, special = random.Random(0), set(model.tokenizer.all_special_ids)
    ordinary = [token for token in range(len(model.tokenizer)) if token not in special]
    ids = draw.choices(ordinary, k=20)
    ids[9] = model.encode("A").input_ids[0]
    model.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            weights = model.model(torch.tensor([ids]), output_attentions=True).attentions
    finally:
        model.model.set_attn_implementation("sdpa")
    expected = torch.stack(weights)[:, 0, :, -1, 9].mean()
    assert table.numbers["attention"][1] == pytest.approx(float(expected), abs=1e-5)
