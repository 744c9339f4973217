"""ZeroTuning against the whole matrix of attention weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.methods import SIW, Compose, SelfExtend, ZeroTuning
from tests.conftest import FamilyModel
from tests.contract.cases import LONG
from tests.contract.running import prompt_logits
from tests.families import FAMILIES
from tests.methods.against_naive import WAYS, assert_equal_to_naive
from tests.reference.zero_tuning import NaiveZeroTuning

CASES: dict[str, tuple[ZeroTuning, dict[int, dict[int, float]]]] = {
    "all": (ZeroTuning(factor=2.5), {layer: dict.fromkeys(range(4), 2.5) for layer in range(3)}),
    "some": (
        ZeroTuning(factor=0.1, heads=(3, 1), layers=(0, 2)),
        {0: {1: 0.1, 3: 0.1}, 2: {1: 0.1, 3: 0.1}},
    ),
    "each": (ZeroTuning(factor=(0.2, 4), heads=(2, 0), layers=(1,)), {1: {2: 0.2, 0: 4.0}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(5)
def test_heads_weigh_the_initial_token(
    name: str, implementation: str, case: str, family_model: FamilyModel
) -> None:
    method, factors = CASES[case]
    assert_equal_to_naive(
        family_model(name, implementation), method, NaiveZeroTuning, factors=factors
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1e-6, 1e-2, 100.0])
def test_the_initial_token_keeps_its_output_in_half_precision(
    factor: float, dtype: torch.dtype
) -> None:
    """It attends to nothing else: whatever the factor, all of its weight stays there."""
    model = FAMILIES["llama"].build().to(dtype)
    plain = prompt_logits(model, LONG)
    with applied(model, ZeroTuning(factor=factor), [LONG.tokens]):
        logits = prompt_logits(model, LONG)
    torch.testing.assert_close(logits[0], plain[0], atol=2e-2, rtol=0)
    assert logits.isfinite().all()


def test_heads_that_a_model_does_not_have_are_refused(family_model: FamilyModel) -> None:
    model = family_model("llama")
    for method in (ZeroTuning(factor=2, heads=(4,)), ZeroTuning(factor=(2, 2, 2))):
        with (
            pytest.raises(MethodConfigError, match="has 4 heads"),
            applied(model, method, [LONG.tokens]),
        ):
            prompt_logits(model, LONG)


@pytest.mark.parametrize(
    "options",
    [
        {"factor": 0},
        {"factor": (1, -2)},
        {"factor": float("nan")},
        {"factor": ()},
        {"factor": (1, 2), "heads": (0,)},
        {"factor": 2, "heads": (0, 0)},
        {"factor": 2, "heads": ()},
        {"factor": 2, "layers": 3},
        {},
    ],
)
def test_mistakes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(MethodConfigError):
        ZeroTuning(**options)


def test_it_composes_where_nothing_else_weighs(family_model: FamilyModel) -> None:
    with pytest.raises(IncompatibleMethodsError, match="self_extend"):
        Compose(methods=(ZeroTuning(factor=2), SelfExtend(group=2, window=4)))
    apart = Compose(methods=(ZeroTuning(factor=2, layers=(0,)), SIW(layers=(1, 2))))
    model = family_model("llama")
    with applied(model, apart, [LONG.tokens]):
        prompt_logits(model, LONG)
