"""PINE where there is no order: with one document, and with none."""

import pytest

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import LONG
from tests.contract.running import distance, prompt_logits
from tests.families import FAMILIES
from tests.prompts import laid_out


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "cohere2"])
def test_empty_documents_and_prompts_without_documents_change_nothing(
    family: str, family_model: FamilyModel
) -> None:
    model = family_model(family)
    plain = prompt_logits(model, LONG)
    for documents in ((), ((4, 4),), ((3, 3), (3, 19), (19, 19))):
        with applied(model, PINE(), [laid_out(PromptLayout(24, documents))]):
            assert distance(prompt_logits(model, LONG), plain) < FAMILIES[family].tolerance
