"""Token ids with document spans, alone and in batches."""

import pytest
import torch

from rag_middle.errors import PromptError
from rag_middle.tokens import TokenizedPrompt, padded


def prompt(*documents: list[int], prefix: tuple[int, ...] = (1, 2)) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(
        prefix=prefix,
        documents=documents,
        suffix=[9],
        document_ids=[f"d{index}" for index in range(len(documents))],
    )


def test_select_orders_and_drops_documents() -> None:
    chosen = prompt([3, 4], [6], [5]).select([2, 0])
    assert chosen.input_ids == (1, 2, 5, 3, 4, 9)
    assert chosen.document_ids == ("d2", "d0")
    assert chosen.layout.documents == ((2, 3), (3, 5))


@pytest.mark.parametrize("order", [[0, 0], [3], [-1]])
def test_select_refuses_documents_named_twice_or_missing(order: list[int]) -> None:
    with pytest.raises(PromptError, match="some of the 3 documents"):
        prompt([3], [4], [5]).select(order)


def test_shorter_prompts_are_padded_on_the_left() -> None:
    prompts = prompt([3, 4]), prompt([], prefix=(7,))
    input_ids, attention_mask = padded(prompts, 0)
    assert input_ids.tolist() == [[1, 2, 3, 4, 9], [0, 0, 0, 7, 9]]
    assert attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert input_ids.dtype == attention_mask.dtype == torch.long


def test_scores_follow_their_documents() -> None:
    prompt = TokenizedPrompt.assembled(
        prefix=(1,),
        documents=((2,), (3, 3), (4,)),
        suffix=(5,),
        document_ids=(None,) * 3,
        scores=(0.1, 0.3, 0.2),
    )
    assert prompt.select((2, 1)).scores == (0.2, 0.3)
    with pytest.raises(PromptError, match="got 6, 3 and 2"):
        TokenizedPrompt(
            input_ids=prompt.input_ids,
            layout=prompt.layout,
            document_ids=prompt.document_ids,
            scores=(0.1, 0.2),
        )
