"""Ms-PoE against its paper, one head at a time."""

from __future__ import annotations

import pytest

from rag_middle.methods import MsPoE
from tests.conftest import FamilyModel
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
def test_ms_poe_with_grouped_queries(
    name: str, implementation: str, settings: dict[str, float], family_model: FamilyModel
) -> None:
    model = family_model(name, implementation)
    assert_equal_to_naive(model, MsPoE(**settings), NaiveMsPoE, **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
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
