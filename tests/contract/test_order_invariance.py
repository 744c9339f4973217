"""The promise of order-free methods: the order of the documents changes nothing."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.methods import (
    APE,
    PINE,
    Method,
    NoInterDocumentAttention,
    ParallelContextWindows,
    RoToR,
    SetBasedPrompting,
    StructuredPrompting,
)
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, Prompt, expected_refusal
from tests.contract.running import distance, generated_under, logits_under, prompt_logits
from tests.families import FAMILIES

pytestmark = pytest.mark.thorough

ORDER_FREE: dict[str, Method] = {
    "pine": PINE(),
    "rotor": RoToR(),
    "rotor_frequency": RoToR(order="frequency"),
    "no_inter_document_attention": NoInterDocumentAttention(equal_positions=True),
    "parallel_context_windows": ParallelContextWindows(),
    "parallel_context_windows_right": ParallelContextWindows(right_indentation=True),
    "set_based_prompting": SetBasedPrompting(),
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


def _as_read(method: Method, prompt: Prompt) -> Prompt:
    """The prompt in RoToR's own order, which is what makes it order-free.

    The others' attention has to be order-free whatever order it is given.
    """
    if not isinstance(method, RoToR):
        return prompt
    runner: Any = None  # it does not look at the model
    return prompt.permuted(method.arrange(prompt.tokens, runner))


def _in_order(logits: Tensor, prompt: Prompt, order: Sequence[int]) -> Tensor:
    """The rows that a prompt with its documents in `order` should have."""
    spans = prompt.layout.documents
    pieces = [logits[: spans[0][0]], *(logits[slice(*spans[i])] for i in order)]
    return torch.cat((*pieces, logits[spans[-1][1] :]))


@pytest.mark.pairs(("family", "method"), TAKEN)
@pytest.mark.one_in(6)
def test_document_order_changes_no_logits(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model, chosen = family_model(family), ORDER_FREE[method]
    assert chosen.order_free
    given = _as_read(chosen, LONG)
    expected = logits_under(model, chosen, given)
    for order in ORDERS:
        shuffled = _as_read(chosen, LONG.permuted(order))
        logits = logits_under(model, chosen, shuffled)
        # Every token of a document, too, has the logits it had in the other order.
        places = range(3) if isinstance(chosen, RoToR) else order
        assert distance(logits, _in_order(expected, given, places)) < FAMILIES[family].tolerance
    plain = prompt_logits(model, LONG.permuted(order))[-1]
    assert distance(plain, prompt_logits(model, LONG)[-1]) > 0.01


@pytest.mark.pairs(("family", "method"), TAKEN)
@pytest.mark.one_in(10)
def test_document_order_does_not_change_what_is_generated(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model, chosen = family_model(family), ORDER_FREE[method]
    prompts = [_as_read(chosen, prompt) for prompt in (LONG, LONG.permuted((2, 0, 1)))]
    tokens, logits = generated_under(model, chosen, prompts, steps=5)
    assert torch.equal(tokens[0], tokens[1])
    assert distance(logits[0], logits[1]) < FAMILIES[family].tolerance
