"""Operations are counted as a GPU would run them, on tensors that hold no numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.operation_counts import GPUS, Operation, Work, _pairs, counted


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


def test_views_and_room_are_no_launches() -> None:
    x = _empty(4, 6)
    with counted() as work:
        x.t()[1:].unsqueeze(0).expand(3, -1, -1)
        torch.empty(5, device="meta")
        x.reshape(24).sin_()
    assert [operation.name for operation in work.operations] == ["sin_"]
    assert (work.launches, work.bytes) == (1, 2 * 2 * 24)


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


def test_reading_back_is_refused() -> None:
    with counted(), pytest.raises(RuntimeError):
        _empty(1).item()
    with counted(), pytest.raises(NotImplementedError):
        _empty(3).cpu()


def test_the_peak_is_what_is_alive_together() -> None:
    with counted() as work:
        for _ in range(3):
            x = _empty(100) * 1
            y = x + 1
            del x, y
        kept = _empty(10) * 1
    assert work.peak_bytes == 2 * 200  # an operand goes before the next sum
    assert work.kept_bytes == kept.nbytes


def test_square_masks_are_seen() -> None:
    with counted() as work:
        torch.ones(2000, 1500, dtype=torch.bool, device="meta")
        torch.ones(2000, 64, dtype=torch.bool, device="meta")
    assert work.squares == 1


def test_a_roofline_takes_the_slower_of_arithmetic_and_memory() -> None:
    gpu = GPUS["h200"]
    arithmetic = Work()
    arithmetic.operations[Operation("mm", "half", 10**15, 1, 1)] = 2
    assert gpu.computing(arithmetic) == pytest.approx(2 * 1e15 / (989e12 * 0.7))
    memory = Work(uploads=1)
    memory.operations[Operation("add", "memory", 0, 10**12, 1)] = 1
    assert gpu.computing(memory) == pytest.approx(1e12 / (4800e9 * 0.8))
    assert gpu.launching(memory) > gpu.launching(arithmetic) / 2 > 0
