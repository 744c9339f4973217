"""Layers whose tables come from rotary modules of their own: Granite with a base for each layer."""

from typing import Any

import pytest
import torch
from transformers import GraniteSWAConfig

import rag_middle
from rag_middle.attention import applied
from rag_middle.methods import (
    APE,
    LPES,
    PINE,
    Method,
    MoICE,
    MsPoE,
    SelfExtend,
)
from tests import tiny_models
from tests.contract.cases import LONG
from tests.contract.running import distance, generated, prompt_logits, recomputed
from tests.prompts import laid_out

CHANGING: list[Method] = [
    LPES(factors=1.4),
    MsPoE(first_layer=0),
    MoICE(routers="uniform", base_factors=(1.0, 3.0)),
    SelfExtend(group=3, window=4),
    PINE(),
    APE(temperature=0.6, scale=0.8),
]


@pytest.fixture(params=[(1e4, 10.0, 1e4), (10.0, 1e4, 0)], ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    """A layer of base 0 has no rotary positions."""
    config = tiny_models.tiny(
        GraniteSWAConfig, layer_types=["full_attention"] * 3, layer_rope_theta=list(request.param)
    )
    return tiny_models.build("granite_swa", config, "eager")


@pytest.mark.parametrize("method", CHANGING, ids=lambda method: type(method).__name__)
@pytest.mark.one_in(3)
def test_decoding_with_a_cache_equals_recomputation(model: Any, method: Method) -> None:
    with applied(model, method, [LONG.tokens]):
        tokens, logits = generated(model, [LONG])
        assert distance(recomputed(model, LONG, tokens[0]), logits[0]) < 1e-3


def test_an_installed_method_rotates_every_layer_by_its_own_base(model: Any) -> None:
    method = LPES(factors=1.4)
    with applied(model, method, [laid_out(LONG.layout)]):
        expected = prompt_logits(model, LONG)
    installed = rag_middle.install(model, method)
    try:
        torch.testing.assert_close(prompt_logits(model, LONG), expected)
    finally:
        installed.undo()
