"""PINE where documents tie: the same tokens in another order weigh the same in the first layer."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import PINE
from rag_middle.tokens import TokenizedPrompt
from tests.conftest import FamilyModel
from tests.contract.running import distance
from tests.tokenizers import byte_level_bpe

DOCUMENTS = 20
BEGINNING = (41, 17, 23, 11, 52, 38, 29, 14)  # of all documents
FAMILIES = ("llama", "qwen3", "gemma2", "gpt_oss", "smollm3", "cohere")


def _alike() -> TokenizedPrompt:
    """Twenty documents that differ in the order of their last tokens only."""
    draw, tails = random.Random(0), dict[tuple[int, ...], None]()
    while len(tails) < DOCUMENTS:
        tails[tuple(draw.sample((5, 9, 12, 30, 33), 5))] = None
    return TokenizedPrompt.assembled(
        prefix=(6, 7, 8),
        documents=[BEGINNING + tail for tail in tails],
        suffix=(18, 19, 20, 21),
        document_ids=[str(index) for index in range(DOCUMENTS)],
    )


PROMPT = _alike()
SHUFFLED = [
    PROMPT.select(random.Random(seed).sample(range(DOCUMENTS), DOCUMENTS)) for seed in range(4)
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_in(3)
def test_the_order_of_alike_documents_changes_nothing(
    family: str, family_model: FamilyModel
) -> None:
    model = RagMiddleModel(family_model(family), byte_level_bpe(), method="pine")
    expected = model.logits(PROMPT)
    answer = model.generate(PROMPT, max_new_tokens=4)
    for shuffled in SHUFFLED:
        # Bit by bit: the model reads the very same tokens.
        assert torch.equal(model.logits(shuffled), expected)
        assert model.generate(shuffled, max_new_tokens=4).token_ids == answer.token_ids
    assert distance(expected, model.logits(PROMPT, method="none")) > 0.01


def test_in_half_precision_too(family_model: FamilyModel) -> None:
    half: Any = deepcopy(family_model("llama"))
    half.to(torch.bfloat16)
    model = RagMiddleModel(half, byte_level_bpe(), method="pine")
    expected = model.logits(PROMPT)
    for shuffled in SHUFFLED:
        assert torch.equal(model.logits(shuffled), expected)


def test_rows_of_a_batch_agree_with_each_other(family_model: FamilyModel) -> None:
    model = RagMiddleModel(family_model("llama"), byte_level_bpe(), method="pine")
    first, *others = model.batch([PROMPT, *SHUFFLED], max_new_tokens=4)
    assert {each.token_ids for each in others} == {first.token_ids}
    assert {each.document_ids for each in others} == {first.document_ids}


def test_documents_of_these_prompts_do_tie(family_model: FamilyModel) -> None:
    """Attention alone leaves ties to the order it is given, or these tests would show nothing."""
    model, logits = family_model("llama"), []
    for prompt in (PROMPT, SHUFFLED[0]):
        with applied(model, PINE(), [prompt]), torch.no_grad():
            logits.append(model(torch.tensor([prompt.input_ids])).logits[0, -1])
    assert distance(*logits) > 0.01
