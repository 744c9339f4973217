"""Positions that a caller gives, or leaves to the model, which then counts padding too."""

from __future__ import annotations

import pytest
import torch

from rag_middle.attention import applied
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, LONG, SHORT
from tests.contract.running import distance, left_padded, prompt_logits

#: As in the authors' code, a group's keys go by the ratio of its first head, and scores with them
#: by more than distances: tokens elsewhere are something else.
BY_POSITION = ("ms_poe_reference_code",)


@pytest.mark.parametrize("first", [None, 0, 9])
@pytest.mark.parametrize("name", [name for name in ACTIVE if name not in BY_POSITION])
def test_where_a_prompt_begins_makes_no_difference(
    family_model: FamilyModel, name: str, first: int | None
) -> None:
    model, method = family_model("llama"), ACTIVE[name]
    ids, mask = left_padded([LONG, SHORT])
    positions = None if first is None else (mask.cumsum(1) - 1).clamp(min=0) + first
    with torch.no_grad():
        with applied(model, method, [LONG.tokens, SHORT.tokens]):
            logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        for row, prompt in enumerate((LONG, SHORT)):
            with applied(model, method, [prompt.tokens]):
                alone = prompt_logits(model, prompt)
            # float32 sums in another order, and angles of other positions.
            assert distance(logits[row, -len(alone) :], alone) < 5e-4
