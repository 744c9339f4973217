"""Methods that compose, and those that do not."""

from itertools import product
from typing import Any

import pytest
import torch

from rag_middle.errors import IncompatibleMethodsError
from rag_middle.methods import LPES, PINE, SIW, Compose, Method, MsPoE, PositionInterpolation
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, SHORT
from tests.contract.running import (
    assert_cached_equals_recomputed,
    assert_refused,
    assert_rows_equal_prompts_alone,
    distance,
    logits_under,
)
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

COMPOSITIONS = (
    "siw+lpes",
    "siw+positional_hidden_states",
    "siw+ms_poe",
    "siw+position_interpolation",
    "siw+self_extend",
    "lpes+positional_hidden_states",
    "position_interpolation+positional_hidden_states",
    "siw+lpes+positional_hidden_states",
)
REPRESENTATIVES = ("llama", "qwen3", "gemma2", "gpt_oss", "smollm3")


def composed(names: tuple[str, ...], neutral: str | None = None) -> Compose:
    """The active methods of these names, one of them in its neutral form."""
    return Compose(methods=tuple(EXAMPLES[n].neutral if n == neutral else ACTIVE[n] for n in names))


@pytest.mark.pairs(("family", "composition"), list(product(REPRESENTATIVES, COMPOSITIONS)))
@pytest.mark.one_in(6)
def test_each_part_of_a_composition_takes_effect(
    family: str, composition: str, family_model: FamilyModel
) -> None:
    model, names = family_model(family), tuple(composition.split("+"))
    together = logits_under(model, composed(names))
    for name in names:
        rest = tuple(other for other in names if other != name)
        without = logits_under(model, composed(rest))
        assert distance(together, without) > 0.01
        # A neutral part is as good as none.
        neutral = logits_under(model, composed(names, neutral=name))
        assert distance(neutral, without) < FAMILIES[family].tolerance
    assert torch.equal(logits_under(model, composed(names[::-1])), together)


@pytest.mark.pairs(("family", "composition"), list(product(REPRESENTATIVES, COMPOSITIONS)))
@pytest.mark.one_in(6)
def test_compositions_keep_the_contract_of_generation(
    family: str, composition: str, family_model: FamilyModel
) -> None:
    model, method = family_model(family), composed(tuple(composition.split("+")))
    assert_rows_equal_prompts_alone(model, method, FAMILIES[family].tolerance)
    for prompt in (SHORT, LONG):
        assert_cached_equals_recomputed(model, method, FAMILIES[family].tolerance, prompt)


def test_one_method_twice_in_different_layers(llama: Any) -> None:
    parts = (
        PositionInterpolation(scale=1.3, layers=(0,)),
        PositionInterpolation(scale=1.5, layers=(2,)),
    )
    whole = logits_under(llama, LPES(factors=(1.3, 1.0, 1.5)))
    assert torch.equal(logits_under(llama, Compose(methods=parts)), whole)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (LPES(factors=1.5), PositionInterpolation(scale=1.5), "positions of layer 0"),
        (MsPoE(), LPES(factors=1.5), "positions of layer 2"),
        (SIW(), SIW(alpha_dense=0.5), "weights of layer 0"),
        (
            ACTIVE["positional_hidden_states"],
            ACTIVE["positional_hidden_states_wide"],
            "hidden of layer 0",
        ),
    ],
)
def test_two_claims_on_a_layer_are_refused_when_the_model_is_known(
    first: Method, second: Method, reason: str, family_model: FamilyModel
) -> None:
    assert_refused(
        family_model("llama"), Compose(methods=(first, second)), IncompatibleMethodsError, reason
    )


@pytest.mark.parametrize("other", [name for name in EXAMPLES if name not in ("none", "compose")])
def test_pine_composes_with_nothing_that_changes_anything(other: str) -> None:
    with pytest.raises(IncompatibleMethodsError, match="pine"):
        Compose(methods=(PINE(), EXAMPLES[other].neutral))
