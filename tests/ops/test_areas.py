"""Documents that are read densely."""

from __future__ import annotations

import pytest
import torch

from rag_middle.layout import PromptLayout
from rag_middle.methods.siw.attention import document_density

LAYOUT = PromptLayout(20, ((2, 6), (6, 12), (12, 16)))


def _attention(*attended: int, tokens: int = 20) -> torch.Tensor:
    """Attention that prefers these tokens, the first of them most."""
    attention = torch.linspace(0.01, 0.001, tokens)
    for rank, token in enumerate(attended):
        attention[token] = 1 - 0.05 * rank
    return attention / attention.sum()


def test_density_is_a_documents_share_less_that_of_all_documents() -> None:
    # 30 % of 20 tokens are 6: four in the documents, one before and one after them.
    density = document_density(_attention(0, 3, 4, 5, 7, 18), LAYOUT, top_share=0.3)
    expected = torch.tensor([3 / 4, 1 / 6, 0 / 4]) - 4 / 14
    torch.testing.assert_close(density, expected)


@pytest.mark.parametrize("length", [3, 5, 6, 7, 11, 13, 29])
@pytest.mark.parametrize("documents", [2, 3, 7, 10])
def test_documents_with_the_same_share_are_exactly_equal(length: int, documents: int) -> None:
    """Whatever the rounding of a division: the sign decides about a factor."""
    spans = tuple((i * length, (i + 1) * length) for i in range(documents))
    tokens = length * documents
    attended = [start + offset for start, _ in spans for offset in range(2)]
    attention = torch.ones(tokens)
    attention[attended] = 2.0
    layout = PromptLayout(tokens, spans)
    density = document_density(attention, layout, top_share=len(attended) / tokens)
    assert density.tolist() == [0.0] * documents
