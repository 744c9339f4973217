"""Operations are counted as a GPU would run them, on tensors that hold no numbers."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.operation_counts import counted


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_kernel(causal: bool) -> None:
    query, key = _empty(2, 8, 10, 16), _empty(2, 4, 10, 16)
    with counted() as work:
        out = scaled_dot_product_attention(query, key, key, is_causal=causal, enable_gqa=True)
    assert out.shape == query.shape
    [(operation, times)] = work.operations.items()
    pairs = 55 if causal else 100
    assert (operation.kind, operation.flops, times) == ("attention", 4 * 2 * 8 * pairs * 16, 1)


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
