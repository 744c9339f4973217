"""Position Interpolation and LPES against one rotation at a time."""

from __future__ import annotations

import pytest
import torch

from rag_middle.methods import LPES, PositionInterpolation
from tests.conftest import FamilyModel
from tests.methods.against_naive import MODELS, PROMPTS, WAYS, assert_equal_to_naive, naive
from tests.reference.llama import NaiveLlama
from tests.reference.position_scaling import NaivePositionScaling


@pytest.mark.parametrize("name", MODELS)
def test_the_naive_decoder_is_the_model(name: str, family_model: FamilyModel) -> None:
    model, prompt = family_model(name), PROMPTS[0]
    expected = model(prompt.ids).logits[0]
    logits = naive(NaiveLlama, model, prompt).logits(prompt.ids[0])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scale", [0.5, 1.7])
@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_position_interpolation(
    name: str, implementation: str, scale: float, family_model: FamilyModel
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        PositionInterpolation(scale=scale),
        NaivePositionScaling,
        scales=(scale,) * 3,
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_position_interpolation_of_one_layer(
    name: str, implementation: str, family_model: FamilyModel
) -> None:
    assert_equal_to_naive(
        family_model(name, implementation),
        PositionInterpolation(scale=2.0, layers=(1,)),
        NaivePositionScaling,
        scales=(1.0, 2.0, 1.0),
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
def test_lpes(name: str, implementation: str, family_model: FamilyModel) -> None:
    scales = (1.2, 1.9, 1.4)
    assert_equal_to_naive(
        family_model(name, implementation),
        LPES(factors=scales),
        NaivePositionScaling,
        scales=scales,
    )
