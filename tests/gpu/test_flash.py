"""Fused attention on a CUDA device against whole matrices, and no wait for it while decoding."""

import pytest
import torch
from torch import Tensor

from rag_middle.ops.flash import Attended, flash_each, flash_last, flash_window

pytestmark = pytest.mark.gpu

SCALE = 0.3


def _tensors(m: int, n: int, d: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(m + n + d)
    shapes = ((1, 8, m, d), (1, 2, n, d), (1, 2, n, d))
    # As a model has them: heads behind tokens in memory.
    return [
        torch.randn(shape, generator=generator)
        .transpose(1, 2)
        .contiguous()
        .to("cuda", dtype)
        .transpose(1, 2)
        for shape in shapes
    ]


def _expected(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Attended:
    key, value = (x.float().repeat_interleave(4, dim=1) for x in (key, value))
    scores = (SCALE * query.float() @ key.transpose(-1, -2)).masked_fill(~visible, -torch.inf)
    return Attended(scores.softmax(-1) @ value, scores.logsumexp(-1))


def _assert_close(actual: Attended, expected: Attended) -> None:
    half = actual.out.dtype != torch.float32
    torch.testing.assert_close(
        actual.out.float(), expected.out, atol=3e-2 if half else 3e-5, rtol=0
    )
    torch.testing.assert_close(actual.lse, expected.lse, atol=1e-2 if half else 1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("d", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("m", "n"), [(1, 200), (40, 200), (200, 200)])
def test_causal_attention_and_windows(m: int, n: int, d: int, dtype: torch.dtype) -> None:
    q, k, v = _tensors(m, n, d, dtype)
    distance = torch.arange(n - m, n, device="cuda")[:, None] - torch.arange(n, device="cuda")
    _assert_close(flash_last(q, k, v, scale=SCALE), _expected(q, k, v, distance >= 0))
    for window in (1, 33, 64, 300):
        visible = (distance >= 0) & (distance < window)
        _assert_close(flash_window(q, k, v, window, scale=SCALE), _expected(q, k, v, visible))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [(200,), (60, 0, 1, 139), (0, 100, 100)])
def test_texts_in_one_call(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = _tensors(200, 200, 128, dtype)
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    text = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).cuda()
    token = torch.arange(200, device="cuda")
    own = text[:, None] == text
    causal = own & (token[:, None] >= token)
    _assert_close(
        flash_each(q, k, v, lengths, scale=SCALE, bounds=bounds), _expected(q, k, v, causal)
    )
