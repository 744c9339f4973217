"""Generation that runs out of windows and of tables made beforehand."""

import pytest

from rag_middle.attention import applied, change
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, SHORT, expected_refusal
from tests.contract.running import at_once, distance, generated_under
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

SLIDING = [name for name, family in FAMILIES.items() if family.traits.window]
TAKEN = [
    (family, method)
    for family in SLIDING
    for method in ACTIVE
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is None
]


@pytest.mark.pairs(("family", "method"), TAKEN, by="group")
@pytest.mark.one_in(10)
def test_more_tokens_than_a_sliding_window_holds(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    assert FAMILIES[family].traits.window == 8
    tokens, logits = generated_under(model, ACTIVE[method], [SHORT, LONG], steps=13)
    for row, prompt in enumerate((SHORT, LONG)):
        with applied(model, ACTIVE[method], [prompt.tokens]):
            expected = at_once(model, prompt, tokens[row])
        assert distance(logits[row], expected) < FAMILIES[family].tolerance


@pytest.mark.parametrize("family", ["llama", "glm4", "gemma3_text", "gpt_oss"])
def test_pine_makes_more_tables_when_they_run_out(
    family: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_model(family)
    _, expected = generated_under(model, PINE(), [SHORT, LONG], steps=8)
    monkeypatch.setattr(change, "TABLE_STEP", 2)
    _, logits = generated_under(model, PINE(), [SHORT, LONG], steps=8)
    assert distance(logits, expected) < FAMILIES[family].tolerance
