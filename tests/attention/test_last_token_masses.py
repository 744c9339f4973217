"""What the last token attends to, under every method, against outputs that the values give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.attention import applied, last_token_masses
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.methods import NoMethod
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG

TOKENS = LONG.tokens
EACH_TOKEN = torch.eye(LONG.layout.length)
#: Values are not the model's own there.
OTHER_VALUES = "positional_hidden_states_wide"
#: They read tokens a second time.
TWICE = ["cacheblend", *(name for name in ACTIVE if name.startswith("dysco"))]
ONCE = [name for name in ("none", *ACTIVE) if name not in (OTHER_VALUES, *TWICE)]


@torch.no_grad()
def values_and_outputs(network: Any, method: Any) -> list[tuple[Tensor, Tensor]]:
    """By layer: values `[l, g, dv]`, and the output of the last token's attention `[h, dv]`."""
    seen: dict[str, list[Tensor]] = {"values": [], "outputs": []}
    handles = []
    for layer in network.model.layers:
        attention = layer.self_attn
        handles.append(
            attention.v_proj.register_forward_hook(lambda *call: seen["values"].append(call[2]))
        )
        handles.append(
            attention.o_proj.register_forward_pre_hook(
                lambda _module, args: seen["outputs"].append(args[0])
            )
        )
    try:
        with applied(network, method, [TOKENS]):
            network(input_ids=LONG.ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    size = network.config.head_dim
    return [
        (values[0].unflatten(-1, (-1, size)), output[0, -1].unflatten(-1, (-1, size)))
        for values, output in zip(
            (values for values in seen["values"] if values.shape[1] == LONG.layout.length),
            seen["outputs"],
            strict=True,
        )
    ]


@pytest.mark.parametrize("name", TWICE)
def test_attention_of_two_passes_is_refused(family_model: FamilyModel, name: str) -> None:
    network = family_model("llama3", "sdpa")
    with pytest.raises(UnsupportedGenerationError, match="reads tokens a second time"):
        last_token_masses(network, ACTIVE[name], TOKENS, EACH_TOKEN)
    assert last_token_masses(network, NoMethod(), TOKENS, EACH_TOKEN).isfinite().all()


@pytest.mark.parametrize("name", ONCE)
def test_masses_weigh_the_values_to_the_output(family_model: FamilyModel, name: str) -> None:
    network = family_model("llama3", "sdpa")
    method = ACTIVE.get(name, NoMethod())
    masses = last_token_masses(network, method, TOKENS, EACH_TOKEN)
    for (values, output), weights in zip(values_and_outputs(network, method), masses, strict=True):
        repeated = values.repeat_interleave(weights.shape[0] // values.shape[1], dim=1)
        # float32, the same numbers in another order
        assert torch.allclose(torch.einsum("hl,lhd->hd", weights, repeated), output, atol=1e-5)


def test_what_a_method_adds_to_values_is_not_attention(family_model: FamilyModel) -> None:
    masses = last_token_masses(
        family_model("llama3", "sdpa"), ACTIVE[OTHER_VALUES], TOKENS, EACH_TOKEN
    )
    assert masses.sum(-1).numpy() == pytest.approx(1, abs=1e-5)  # float32


def test_masses_of_segments_are_sums_over_their_tokens(family_model: FamilyModel) -> None:
    network = family_model("llama3", "sdpa")
    segments = torch.stack([torch.arange(24) < 10, torch.arange(24) >= 10], dim=1).float()
    by_token = last_token_masses(network, NoMethod(), TOKENS, EACH_TOKEN)
    by_segment = last_token_masses(network, NoMethod(), TOKENS, segments)
    # float32, the same numbers in another order
    assert torch.allclose(by_token @ segments, by_segment, atol=1e-5)
