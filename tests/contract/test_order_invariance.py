"""The promise of order-free methods: the order of the documents changes nothing."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from rag_middle.attention import applied
from rag_middle.methods import (
    APE,
    PINE,
    Method,
    NoInterDocumentAttention,
    ParallelContextWindows,
    StructuredPrompting,
)
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, Prompt, expected_refusal
from tests.contract.running import distance, generated, prompt_logits
from tests.families import FAMILIES

ORDER_FREE: dict[str, Method] = {
    "pine": PINE(),
    "no_inter_document_attention": NoInterDocumentAttention(equal_positions=True),
    "parallel_context_windows": ParallelContextWindows(),
    "parallel_context_windows_right": ParallelContextWindows(right_indentation=True),
    "structured_prompting": StructuredPrompting(),
    "ape": APE(temperature=0.6, scale=0.8),
}
TAKEN = [
    (name, method)
    for name, family in FAMILIES.items()
    for method in ORDER_FREE
    if expected_refusal(ORDER_FREE[method], family.traits, name) is None
]
ORDERS = list(permutations(range(3)))[1:]


def _in_order(logits: Tensor, prompt: Prompt, order: tuple[int, ...]) -> Tensor:
    """The rows that a prompt with its documents in `order` should have."""
    spans = prompt.layout.documents
    pieces = [logits[: spans[0][0]], *(logits[slice(*spans[i])] for i in order)]
    return torch.cat((*pieces, logits[spans[-1][1] :]))


@pytest.mark.parametrize(("family", "method"), TAKEN)
def test_document_order_changes_no_logits(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model, chosen = family_model(family), ORDER_FREE[method]
    with applied(model, chosen, [LONG.layout]):
        expected = prompt_logits(model, LONG)
    for order in ORDERS:
        shuffled = LONG.permuted(order)
        with applied(model, chosen, [shuffled.layout]):
            logits = prompt_logits(model, shuffled)
        # Every token of a document, too, has the logits it had in the other order.
        assert distance(logits, _in_order(expected, LONG, order)) < FAMILIES[family].tolerance
    assert distance(prompt_logits(model, shuffled)[-1], prompt_logits(model, LONG)[-1]) > 0.01


@pytest.mark.parametrize(("family", "method"), TAKEN)
def test_document_order_does_not_change_what_is_generated(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model, prompts = family_model(family), [LONG, LONG.permuted((2, 0, 1))]
    with applied(model, ORDER_FREE[method], [prompt.layout for prompt in prompts]):
        tokens, logits = generated(model, prompts, steps=5)
    assert torch.equal(tokens[0], tokens[1])
    assert distance(logits[0], logits[1]) < FAMILIES[family].tolerance
