"""Positional hidden states against two projections of every token."""

from __future__ import annotations

from typing import Any

import pytest

from rag_middle.methods import PositionalHiddenStates
from tests.conftest import FamilyModel
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.positional_hidden_states import NaivePositionalHiddenStates

SETTINGS: tuple[dict[str, Any], ...] = (
    {"channels": (5,), "factor": -1.0},
    {"channels": (5,), "factor": 0.0, "last_tokens": 4},
    {"channels": (2, 40, 17), "factor": 0.5, "scale_values": True},
    {"channels": (5, 6), "factor": -0.5, "skip_first": 3, "last_tokens": 2},
    {"channels": (5,), "factor": -1.0, "last_tokens": None},
    {"channels": (9,), "factor": 3.0, "skip_first": 2, "scale_values": True, "last_tokens": 5},
)


@pytest.mark.parametrize("layers", [(0, 1, 2), (1,)], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_positional_hidden_states(
    name: str,
    implementation: str,
    settings: dict[str, Any],
    layers: tuple[int, ...],
    family_model: FamilyModel,
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        PositionalHiddenStates(layers=layers, **settings),
        NaivePositionalHiddenStates,
        changed_layers=layers,
        **settings,
    )
