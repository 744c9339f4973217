"""Methods compute in float64 what they compute in float32."""

from copy import deepcopy

import pytest

from rag_middle.attention import applied
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, pairs
from tests.contract.running import distance, generated
from tests.families import FAMILIES


# A cap on scores, with sliding windows.
@pytest.mark.parametrize(("family", "method", "implementation"), pairs(["gemma2"]))
@pytest.mark.one_in(4)
def test_float64_gives_the_logits_of_float32(
    family: str, method: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    exact = deepcopy(model).double()
    logits = []
    for each in (model, exact):
        with applied(each, ACTIVE[method], [LONG.tokens]):
            logits.append(generated(each, [LONG])[1][0].float())
    assert distance(*logits) < FAMILIES[family].tolerance
