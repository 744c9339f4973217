"""Ms-PoE against its paper, one head at a time."""

from __future__ import annotations

import math

import pytest
import torch

from rag_middle import MethodConfigError
from rag_middle.attention import applied, model_traits
from rag_middle.methods import MsPoE
from rag_middle.methods.ms_poe import attention
from rag_middle.methods.ms_poe.attention import assigned_ratios, position_awareness
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import distance, generated
from tests.families import FAMILIES
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.ms_poe import NaiveMsPoE
from tests.tiny_models import build, tiny

SETTINGS = (
    {"first_layer": 0, "threshold": 1.0},
    {"first_layer": 1, "threshold": 2.0, "min_ratio": 0.6, "max_ratio": 2.4},
    {"first_layer": 2},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_ms_poe_with_grouped_queries(
    name: str, implementation: str, settings: dict[str, float], family_model: FamilyModel
) -> None:
    model = family_model(name, implementation)
    assert_equal_to_naive(model, MsPoE(**settings), NaiveMsPoE, **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_ms_poe_with_a_key_for_every_head(
    name: str, implementation: str, settings: dict[str, float]
) -> None:
    config_class = type(FAMILIES[name].config())
    model = build("every head", tiny(config_class, num_key_value_heads=4), implementation)
    assert_equal_to_naive(model, MsPoE(**settings), NaiveMsPoE, **settings)


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_sequential_order(name: str, implementation: str, family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        MsPoE(first_layer=0, head_order="sequential"),
        NaiveMsPoE,
        first_layer=0,
        sequential=True,
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_order_by_entropy(name: str, implementation: str, family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        MsPoE(first_layer=0, head_order="entropy", min_ratio=0.6, max_ratio=2.4),
        NaiveMsPoE,
        first_layer=0,
        by_entropy=True,
        min_ratio=0.6,
        max_ratio=2.4,
    )


def test_the_head_that_attends_to_most_tokens_keeps_the_smallest_ratio() -> None:
    """Paper, section 4.3: larger entropy, a ratio near 1. The second head attends evenly."""
    key = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])[None, None]
    query = torch.tensor([[1.0, 0.0], [0.0, 0.0]])[None]
    entropy = position_awareness(query, key, scale=1.0, threshold=None)
    weights = [math.exp(3), 1, 1]
    shares = [weight / sum(weights) for weight in weights]
    expected = [-sum(share * math.log(share) for share in shares), math.log(3)]
    torch.testing.assert_close(entropy, torch.tensor([expected]))
    assert assigned_ratios(entropy, 2, "rank").tolist() == [[1, 0]]


def test_a_random_order_is_one_for_each_layer_and_always_the_same(
    family_model: FamilyModel,
) -> None:
    traits = model_traits(family_model("llama"))
    method = MsPoE(first_layer=0, head_order="random", reference_code=False)
    for layer in traits.layers.values():
        ratios = method.ratios(layer)
        assert ratios == method.ratios(layer)
        assert sorted(ratios) == pytest.approx([1.2, 1.8])
    with pytest.raises(MethodConfigError, match="authors' code has no head_order='random'"):
        MsPoE(head_order="random", reference_code=True)


@pytest.mark.parametrize("family", ["llama", "cohere", "hunyuan_v1_dense"])
def test_a_row_of_many_generates_as_it_does_alone(family: str, family_model: FamilyModel) -> None:
    """Of few rows the model rotates every head of a token by every table."""
    model, method, rows = family_model(family), MsPoE(first_layer=0), 65
    assert rows * model.config.num_attention_heads > attention._MOST_TABLES
    prompts = [(SHORT, LONG)[row % 2] for row in range(rows)]
    with applied(model, method, [prompt.tokens for prompt in prompts]):
        together, logits = generated(model, prompts)
    for row, prompt in enumerate((SHORT, LONG)):
        with applied(model, method, [prompt.tokens]):
            alone, expected = generated(model, [prompt])
        assert torch.equal(together[row], alone[0])
        assert distance(logits[row], expected[0]) < FAMILIES[family].tolerance
