"""Which heads mind positions, and the ratios they get for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rag_middle.methods.ms_poe.attention import assigned_ratios, position_awareness

SCALE = 0.5


def _tensors(heads: int = 4, groups: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        2 * torch.randn(2, heads, 8, generator=generator),
        torch.randn(2, groups, 20, 8, generator=generator),
    )


@pytest.mark.parametrize("threshold", [0.5, 1.0, 3.0])
def test_awareness_is_the_share_of_tokens_far_above_average(threshold: float) -> None:
    query, key = _tensors()
    awareness = position_awareness(query, key, scale=SCALE, threshold=threshold)
    for row in range(2):
        for head in range(4):
            attention = (SCALE * key[row, head // 2] @ query[row, head]).softmax(0).tolist()
            mean = sum(attention) / 20
            share = sum(each >= threshold * mean for each in attention) / 20
            assert awareness[row, head].item() == pytest.approx(share)


def test_padding_does_not_count() -> None:
    query, key = _tensors()
    padding = torch.tensor([0, 7])
    awareness = position_awareness(query, key, scale=SCALE, threshold=1.0, padding=padding)
    alone = position_awareness(query[1:], key[1:, :, 7:], scale=SCALE, threshold=1.0)
    torch.testing.assert_close(awareness[1:], alone)
    whole = position_awareness(query, key, scale=SCALE, threshold=1.0)
    torch.testing.assert_close(awareness[:1], whole[:1])
    assert not torch.equal(awareness[1], whole[1])


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


@pytest.mark.parametrize(
    ("assign", "expected"),
    [
        # Head 2 is the most aware, then 0, then 3, then 1.
        ("rank", [1, 3, 0, 2]),
        ("argsort", [2, 0, 3, 1]),
        ("sequential", [0, 1, 2, 3]),
    ],
)
def test_heads_take_ratios(assign: str, expected: list[int]) -> None:
    awareness = torch.tensor([[0.3, 0.1, 0.9, 0.2], [0.4, 0.3, 0.2, 0.1]])
    choice = assigned_ratios(awareness, 4, assign)
    assert choice.tolist() == [expected, [0, 1, 2, 3]]


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
