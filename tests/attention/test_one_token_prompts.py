"""A prompt of one token looks like a generated token, and is not one."""

from __future__ import annotations

import torch

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE, MsPoE
from tests.conftest import FamilyModel
from tests.prompts import laid_out


def test_a_one_token_prompt_can_be_run_twice_in_a_block(family_model: FamilyModel) -> None:
    model = family_model("llama")
    for method in (PINE(), MsPoE(first_layer=0)):
        with torch.no_grad(), applied(model, method, [laid_out(PromptLayout(1))]):
            first, second = (
                model(input_ids=torch.tensor([[7]]), use_cache=True).logits for _ in range(2)
            )
        torch.testing.assert_close(first, second)
