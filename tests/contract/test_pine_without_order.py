"""PINE where there is no order: with one document, and with none."""

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, ONE_DOCUMENT, expected_refusal
from tests.contract.running import distance, generated, prompt_logits
from tests.families import FAMILIES
from tests.prompts import laid_out

TAKEN = [
    (name, implementation)
    for name, family in FAMILIES.items()
    for implementation in family.implementations
    if expected_refusal(PINE(), family.traits, name) is None
]


@pytest.mark.pairs(("family", "implementation"), TAKEN)
@pytest.mark.one_in(3)
def test_one_document_is_the_unmodified_model_while_generating_too(
    family: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    tokens, logits = generated(model, [ONE_DOCUMENT])
    with applied(model, PINE(), [ONE_DOCUMENT.tokens]):
        under_pine, pine_logits = generated(model, [ONE_DOCUMENT])
    assert torch.equal(under_pine, tokens)
    assert distance(pine_logits, logits) < FAMILIES[family].tolerance


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "cohere2"])
def test_empty_documents_and_prompts_without_documents_change_nothing(
    family: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    plain = prompt_logits(model, LONG)
    for documents in ((), ((4, 4),), ((3, 3), (3, 19), (19, 19))):
        with applied(model, PINE(), [laid_out(PromptLayout(24, documents))]):
            assert distance(prompt_logits(model, LONG), plain) < FAMILIES[family].tolerance
