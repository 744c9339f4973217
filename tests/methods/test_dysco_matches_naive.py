"""DySCO against the same computation token by token, with loops over heads and keys."""

from __future__ import annotations

from typing import Any

import pytest

from rag_middle.methods import DySCO
from tests.conftest import FamilyModel
from tests.methods.against_naive import PROMPTS, WAYS, assert_equal_to_naive
from tests.reference.dysco import NaiveDySCO

HEADS = ((0, 1), (1, 3), (1, 0))
#: Two tokens in a row that each occur in the prompts, and one alone.
TEMPLATE = (tuple(PROMPTS[0].ids[0, 5:7].tolist()), (int(PROMPTS[1].ids[0, 3]),))


def _template_positions(prompt: Any) -> list[int]:
    ids = prompt.ids[0].tolist()
    return [
        start + offset
        for sequence in TEMPLATE
        for start in range(len(ids))
        if tuple(ids[start : start + len(sequence)]) == sequence
        for offset in range(len(sequence))
    ]


BY_SHARE = {"strength": 20.0, "top_p": 0.6, "top_k": 100, "decay": 0.75}
BY_NUMBER = {"strength": 30.0, "top_p": 1.0, "top_k": 4, "decay": 0.9}


@pytest.mark.parametrize(
    ("way", "settings", "changed", "observed"),
    [
        (WAYS[0], BY_SHARE, 3, 7),
        (WAYS[1], BY_NUMBER, 1, 0),
        (WAYS[2], BY_NUMBER, 1, 7),
        (WAYS[3], BY_SHARE, 3, 7),
    ],
    ids=str,
)
def test_logits_of_prompts_and_generated_tokens(
    way: tuple[str, str],
    settings: dict[str, Any],
    changed: int,
    observed: int,
    family_model: FamilyModel,
) -> None:
    assert_equal_to_naive(
        family_model(*way),
        DySCO(
            heads=HEADS,
            changed_prompt_tokens=changed,
            observed_tokens=observed,
            template_sequences=TEMPLATE,
            **settings,
        ),
        NaiveDySCO,
        heads_of_retrieval=HEADS,
        changed=changed,
        observed=observed,
        never=_template_positions,
        **settings,
    )
