"""A block goes on to give the right answer after a forward pass in it was interrupted."""

from __future__ import annotations

import pytest
import torch

from rag_middle.attention import applied
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, expected_refusal
from tests.contract.running import prompt_logits
from tests.families import FAMILIES

TAKEN = [
    (family, method)
    for family in ("llama", "hunyuan_v1_dense")
    for method in ACTIVE
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is None
]


@pytest.mark.parametrize("stage", ["projection", "attention"])
@pytest.mark.parametrize(("family", "method"), TAKEN)
@pytest.mark.one_in(3)
def test_an_interrupted_pass_leaves_nothing_for_the_next_one(
    family: str, method: str, stage: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    attention = [m for m in model.modules() if type(m).__name__.endswith("Attention")][1]
    projection = next(m for m in attention.modules() if isinstance(m, torch.nn.Linear))
    with applied(model, ACTIVE[method], [LONG.tokens]):
        expected = prompt_logits(model, LONG)

    def fail(*_: object) -> None:
        handle.remove()
        raise ZeroDivisionError

    # Registered first, so that it runs before hooks of the block.
    handle = (projection if stage == "projection" else attention).register_forward_hook(fail)
    with applied(model, ACTIVE[method], [LONG.tokens]):
        with pytest.raises(ZeroDivisionError):
            prompt_logits(model, LONG)
        assert torch.equal(prompt_logits(model, LONG), expected)
