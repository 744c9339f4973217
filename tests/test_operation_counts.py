"""Operations are counted as a GPU would run them, on tensors that hold no numbers."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.operation_counts import Operation, _pairs, counted


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_matrix_product_counts_two_operations_for_each_pair() -> None:
    left, right = _empty(3, 5), _empty(5, 7)
    room = _empty(2, 3, 4, dtype=torch.float32)
    batch = _empty(2, 3, 6, dtype=torch.float32), _empty(2, 6, 4, dtype=torch.float32)
    with counted() as work:
        left @ right
        torch.bmm(*batch, out=room)
    half, single = work.operations
    assert half == Operation("mm", "half", 2 * 3 * 5 * 7, 2 * (15 + 35 + 21), 1)
    assert (single.kind, single.flops) == ("single", 2 * 2 * 3 * 6 * 4)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_kernel(causal: bool) -> None:
    query, key = _empty(2, 8, 10, 16), _empty(2, 4, 10, 16)
    with counted() as work:
        out = scaled_dot_product_attention(query, key, key, is_causal=causal, enable_gqa=True)
    assert out.shape == query.shape
    [(operation, times)] = work.operations.items()
    pairs = 55 if causal else 100
    assert (operation.kind, operation.flops, times) == ("attention", 4 * 2 * 8 * pairs * 16, 1)


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("window", [None, 0, 2, 20])
def test_pairs_are_those_of_a_mask(rows: int, window: int | None) -> None:
    columns = 7
    distance = torch.arange(columns - rows, columns)[:, None] - torch.arange(columns)
    visible = distance >= 0
    if window is not None:
        visible &= distance <= window
    assert _pairs(rows, columns, causal=True, window=window) == int(visible.sum())


def test_copies_from_the_host_and_to_float32_are_seen() -> None:
    x = _empty(4, 8)
    with counted() as work:
        torch.tensor([1, 2], device="meta")
        torch.tensor([], device="meta")  # nothing to send
        torch.arange(3).to("meta")
        x[[0, 2]]
        x * 2.0
        x.float()
        x.half()
    assert work.uploads == 3
    assert work.widened_bytes == 2 * 4 * 8


def test_the_peak_is_what_is_alive_together() -> None:
    with counted() as work:
        for _ in range(3):
            x = _empty(100) * 1
            y = x + 1
            del x, y
        kept = _empty(10) * 1
    assert work.peak_bytes == 2 * 200  # an operand goes before the next sum
    assert work.kept_bytes == kept.nbytes
