"""Which heads mind positions, and the ratios they get for it."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.methods.ms_poe.attention import position_awareness

SCALE = 0.5


def _tensors(heads: int = 4, groups: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        2 * torch.randn(2, heads, 8, generator=generator),
        torch.randn(2, groups, 20, 8, generator=generator),
    )


def test_a_token_at_exactly_the_threshold_counts_unless_strict() -> None:
    # Equal scores: every token has exactly the mean attention.
    query, key = torch.zeros(1, 2, 8), torch.ones(1, 2, 4, 8)
    for padding in (None, torch.tensor([0])):
        given = {"scale": 1.0, "threshold": 1.0, "padding": padding}
        assert position_awareness(query, key, **given).tolist() == [[1.0, 1.0]]
        assert position_awareness(query, key, **given, strict=True).tolist() == [[0.0, 0.0]]


def test_half_precision_is_compared_in_float32() -> None:
    query, key = (tensor.bfloat16() for tensor in _tensors())
    awareness = position_awareness(query, key, scale=SCALE, threshold=1.0)
    exact = position_awareness(query.float(), key.float(), scale=SCALE, threshold=1.0)
    assert awareness.dtype == torch.float32
    assert torch.equal(awareness, exact)


def test_a_query_in_float32_is_not_rounded() -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, 8, 64, generator=generator)
    key = torch.randn(1, 1, 4096, 64, generator=generator)

    def awareness(query: Tensor) -> Tensor:
        attention = (query.double()[:, :, None] @ key.double().mT / 8).softmax(-1)[:, :, 0]
        return (attention >= 1 / 4096).double().mean(-1).float()

    assert not torch.equal(awareness(query), awareness(query.bfloat16()))  # it would show
    measured = position_awareness(query, key, scale=1 / 8, threshold=1.0)
    assert torch.equal(measured, awareness(query))
