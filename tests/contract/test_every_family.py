"""Every method on every family that can take it."""

import pytest

from rag_middle.attention import applied, model_traits
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, PAIRS, expected_refusal
from tests.contract.running import (
    assert_cached_equals_recomputed,
    assert_rows_equal_prompts_alone,
    distance,
    logits_under,
    prompt_logits,
)
from tests.families import FAMILIES

NEUTRAL = [
    (family, method, implementation)
    for family in FAMILIES
    for method, example in EXAMPLES.items()
    for implementation in FAMILIES[family].implementations
    if expected_refusal(example.neutral, FAMILIES[family].traits, family) is None
]


@pytest.mark.pairs(("family", "method", "implementation"), NEUTRAL, by="group")
@pytest.mark.one_in(2)
def test_neutral_parameters_give_the_unmodified_model(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model, example = family_model(family, implementation), EXAMPLES[method]
    prompt = example.neutral_prompt
    plain = prompt_logits(model, prompt)
    with applied(model, example.neutral, [prompt.tokens]) as request:
        neutral = prompt_logits(model, prompt)
    planned = example.neutral.plan((prompt.tokens,), model_traits(model)).layers
    assert bool(request.attention_calls) == bool(planned)
    assert bool(planned) == bool(example.active)
    assert distance(neutral, plain) < FAMILIES[family].tolerance


@pytest.mark.pairs(("family", "method", "implementation"), PAIRS, by="group")
@pytest.mark.one_in(2)
def test_other_parameters_move_logits(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    plain = prompt_logits(model, LONG)
    assert (
        distance(logits_under(model, ACTIVE[method]), plain) > 0.05
    )  # logits have a standard deviation of one or more


@pytest.mark.pairs(("family", "method", "implementation"), PAIRS)
@pytest.mark.one_in(4)
def test_decoding_with_a_cache_equals_passes_over_everything(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    assert_cached_equals_recomputed(model, ACTIVE[method], FAMILIES[family].tolerance)


@pytest.mark.pairs(("family", "method", "implementation"), PAIRS, by="group")
@pytest.mark.one_in(4)
def test_a_row_of_a_left_padded_batch_equals_the_prompt_alone(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    assert_rows_equal_prompts_alone(model, ACTIVE[method], FAMILIES[family].tolerance)
