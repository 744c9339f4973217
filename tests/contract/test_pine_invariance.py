"""PINE's promise: the order of the documents changes nothing."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import PINE
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, ONE_DOCUMENT, Prompt, expected_refusal
from tests.contract.running import distance, generated, prompt_logits
from tests.families import FAMILIES

TAKEN = [
    (name, implementation)
    for name, family in FAMILIES.items()
    for implementation in family.implementations
    if expected_refusal(PINE(), family.traits, name) is None
]
ORDERS = list(permutations(range(3)))[1:]


def _in_order(logits: Tensor, prompt: Prompt, order: tuple[int, ...]) -> Tensor:
    """The rows that a prompt with its documents in `order` should have."""
    spans = prompt.layout.documents
    pieces = [logits[: spans[0][0]], *(logits[slice(*spans[i])] for i in order)]
    return torch.cat((*pieces, logits[spans[-1][1] :]))


@pytest.mark.parametrize(("family", "implementation"), TAKEN)
def test_document_order_does_not_change_pine_logits(
    family: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    with applied(model, PINE(), [LONG.layout]):
        expected = prompt_logits(model, LONG)
    for order in ORDERS:
        shuffled = LONG.permuted(order)
        with applied(model, PINE(), [shuffled.layout]):
            logits = prompt_logits(model, shuffled)
        # Every token of a document, too, has the logits it had in the other order.
        assert distance(logits, _in_order(expected, LONG, order)) < FAMILIES[family].tolerance
    assert distance(prompt_logits(model, shuffled)[-1], prompt_logits(model, LONG)[-1]) > 0.01


@pytest.mark.parametrize(("family", "implementation"), TAKEN)
def test_document_order_does_not_change_what_pine_generates(
    family: str, implementation: str, family_model: FamilyModel
) -> None:
    model, prompts = family_model(family, implementation), [LONG, LONG.permuted((2, 0, 1))]
    with applied(model, PINE(), [prompt.layout for prompt in prompts]):
        tokens, logits = generated(model, prompts, steps=5)
    assert torch.equal(tokens[0], tokens[1])
    assert distance(logits[0], logits[1]) < FAMILIES[family].tolerance


@pytest.mark.parametrize(("family", "implementation"), TAKEN)
def test_one_document_is_the_unmodified_model_while_generating_too(
    family: str, implementation: str, family_model: FamilyModel
) -> None:
    model = family_model(family, implementation)
    tokens, logits = generated(model, [ONE_DOCUMENT])
    with applied(model, PINE(), [ONE_DOCUMENT.layout]):
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
        with applied(model, PINE(), [PromptLayout(24, documents)]):
            assert distance(prompt_logits(model, LONG), plain) < FAMILIES[family].tolerance
