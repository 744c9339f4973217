"""PINE on prompts of different layouts: generated tokens all together, or prompt by prompt."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from rag_middle.attention import applied
from rag_middle.methods import PINE
from rag_middle.methods.pine import attention
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import distance, generated
from tests.families import FAMILIES

#: A plain family, one with windows and soft-capping, one with sinks, one with layers without RoPE.
CHOSEN = ("llama", "gemma2", "gpt_oss", "smollm3")


@pytest.mark.parametrize("family", CHOSEN)
def test_prompt_by_prompt_and_together_generate_the_same(
    family: str, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_model(family)
    counted = Mock(wraps=attention.decode_batch)
    monkeypatch.setattr(attention, "decode_batch", counted)
    with applied(model, PINE(), [SHORT.tokens, LONG.tokens]):
        tokens, logits = generated(model, [SHORT, LONG])
    assert counted.called
    counted.reset_mock()
    monkeypatch.setattr(attention, "worth_batching", lambda *_: False)
    with applied(model, PINE(), [SHORT.tokens, LONG.tokens]):
        one_by_one, expected = generated(model, [SHORT, LONG])
    assert not counted.called
    assert tokens.equal(one_by_one)
    assert distance(logits, expected) < FAMILIES[family].tolerance
