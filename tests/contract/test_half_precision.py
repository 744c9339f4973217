"""Half precision: methods run in it, and lose no more than the unmodified model does."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rag_middle.attention import applied
from rag_middle.methods import MsPoE
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, SHORT, expected_refusal
from tests.contract.running import generated, prompt_logits
from tests.families import FAMILIES

FAMILIES_HERE = (
    *("llama", "qwen3", "cohere", "gpt_neox", "gemma2", "gpt_oss", "hunyuan_v1_dense"),
    *("smollm3", "mpt", "gpt2"),
)
WAYS = [
    (family, implementation, dtype)
    for family in FAMILIES_HERE
    for implementation in FAMILIES[family].implementations
    for dtype in ("bfloat16", "float16")
]


@cache
def half_model(family: str, implementation: str, dtype: str) -> PreTrainedModel:
    return FAMILIES[family].build(implementation).to(getattr(torch, dtype))


def _median_distance(a: Tensor, b: Tensor) -> float:
    # Not the largest: rounding flips choices (of experts, head ranks, document orders) for a few
    # tokens, in the unmodified model too.
    return (a.float() - b.float()).abs().median().item()


@pytest.mark.parametrize(("family", "implementation", "dtype"), WAYS)
def test_neutral_parameters_stay_within_the_models_own_rounding(
    family: str, implementation: str, dtype: str, family_model: FamilyModel
) -> None:
    exact, model = family_model(family, implementation), half_model(family, implementation, dtype)
    for example in EXAMPLES.values():
        if expected_refusal(example.neutral, FAMILIES[family].traits, family):
            continue
        prompt = example.neutral_prompt
        plain = prompt_logits(model, prompt)
        rounding = _median_distance(plain, prompt_logits(exact, prompt))
        with applied(model, example.neutral, [prompt.layout]):
            neutral = prompt_logits(model, prompt)
        assert _median_distance(neutral, plain) < 1.5 * rounding, example.neutral


@pytest.mark.parametrize(("family", "implementation", "dtype"), WAYS)
def test_methods_round_about_as_much_as_the_model(
    family: str, implementation: str, dtype: str, family_model: FamilyModel
) -> None:
    exact, model = family_model(family, implementation), half_model(family, implementation, dtype)
    rounding = _median_distance(prompt_logits(model, LONG), prompt_logits(exact, LONG))
    for method in ACTIVE.values():
        if expected_refusal(method, FAMILIES[family].traits, family):
            continue
        with applied(exact, method, [LONG.layout]):
            expected = prompt_logits(exact, LONG)
        with applied(model, method, [LONG.layout]):
            logits = prompt_logits(model, LONG)
        assert logits.dtype == getattr(torch, dtype)
        # Without the method, the distance is a hundred times the rounding. Ms-PoE ranks few heads
        # on few tokens here, where rounding may swap two of them: then other ratios are in force.
        times = 20 if isinstance(method, MsPoE) else 4
        assert _median_distance(logits, expected) < times * rounding, method


@pytest.mark.parametrize(("family", "implementation", "dtype"), WAYS)
def test_padded_batches_generate_finite_logits(
    family: str, implementation: str, dtype: str
) -> None:
    model = half_model(family, implementation, dtype)
    for method in ACTIVE.values():
        if expected_refusal(method, FAMILIES[family].traits, family):
            continue
        with applied(model, method, [SHORT.layout, LONG.layout]):
            _, logits = generated(model, [SHORT, LONG], steps=2)
        assert logits.isfinite().all(), method
