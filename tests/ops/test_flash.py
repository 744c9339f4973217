"""Attention put together from fused calls, against whole matrices."""

import pytest
import torch
from torch import Tensor

from benchmarks.operation_counts import counted
from rag_middle.ops import flash as module
from rag_middle.ops.flash import (
    Attended,
    flash,
    flash_each,
    flash_last,
    flash_window,
    merged,
    with_sinks,
)

SCALE, D = 0.4, 8


def _tensors(m: int, n: int, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(m + n)
    shapes = ((2, 4, m, D), (2, 2, n, D), (2, 2, n, D))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def _expected(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Attended:
    key, value = (x.float().repeat_interleave(2, dim=1) for x in (key, value))
    scores = SCALE * query.float() @ key.transpose(-1, -2)
    scores = scores.masked_fill(~visible, -torch.inf)
    return Attended(scores.softmax(-1) @ value, scores.logsumexp(-1))


def _distance(m: int, n: int) -> Tensor:
    return torch.arange(n - m, n)[:, None] - torch.arange(n)


@pytest.fixture(params=["kernel", "blocks", "small blocks"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        return

    def in_blocks(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False):
        return module._in_blocks(q, k, v, scale, causal)

    monkeypatch.setattr(module, "flash", in_blocks)
    if request.param == "small blocks":
        monkeypatch.setattr(module, "scores_at_once", lambda device: 64)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 9), (4, 9), (9, 9)])
def test_the_last_tokens_see_what_is_before_them(m: int, n: int) -> None:
    q, k, v = _tensors(m, n)
    expected = _expected(q, k, v, _distance(m, n) >= 0)
    torch.testing.assert_close(flash_last(q, k, v, scale=SCALE), expected)
    everything = module.flash(q, k, v, scale=SCALE)
    torch.testing.assert_close(everything, _expected(q, k, v, torch.ones(m, n).bool()))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 12, 13, 30])
@pytest.mark.parametrize("m", [1, 2, 5, 8, 13])
@pytest.mark.one_in(3)
def test_windows_are_those_of_a_mask(m: int, window: int) -> None:
    q, k, v = _tensors(m, 13)
    distance = _distance(m, 13)
    expected = _expected(q, k, v, (distance >= 0) & (distance < window))
    torch.testing.assert_close(flash_window(q, k, v, window, scale=SCALE), expected)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("lengths", [(9,), (3, 0, 1, 5), (4, 5)])
def test_texts_do_not_see_each_other(lengths: tuple[int, ...]) -> None:
    q, k, v = _tensors(9, 9)
    text = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    visible = (_distance(9, 9) >= 0) & (text[:, None] == text)
    expected = _expected(q, k, v, visible)
    torch.testing.assert_close(flash_each(q, k, v, lengths, scale=SCALE), expected)


def test_parts_make_the_whole_whatever_their_shares() -> None:
    q, k, v = _tensors(3, 9)
    k[:, :, 4:] *= 30  # one part has nearly all of the weight
    whole = flash(q, k, v, scale=SCALE)
    left = flash(q, k[:, :, :4], v[:, :, :4], scale=SCALE)
    right = flash(q, k[:, :, 4:], v[:, :, 4:], scale=SCALE)
    for one, other in ((left, right), (right, left)):
        torch.testing.assert_close(merged(one, other), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reads_what_stands_beside_a_token_with_nearly_all_weight(
    dtype: torch.dtype,
) -> None:
    """Whose value is near 0, as that of a prompt's first token often is."""
    read = flash(*_tensors(3, 9, dtype=dtype), scale=SCALE)
    first = Attended(torch.zeros_like(read.out), read.lse + 4)
    expected = read.out.float() * torch.sigmoid(torch.tensor(-4.0))
    for one, other in ((read, first), (first, read)):
        torch.testing.assert_close(merged(one, other).out.float(), expected, rtol=2e-2, atol=0)


def test_a_sink_takes_its_share() -> None:
    q, k, v = _tensors(3, 9)
    sinks = torch.tensor([0.5, -30.0, 2.0, 30.0])
    values = v.repeat_interleave(2, dim=1)
    scores = SCALE * q @ k.repeat_interleave(2, dim=1).transpose(-1, -2)
    scores = torch.cat((scores, sinks[None, :, None, None].expand(2, 4, 3, 1)), dim=-1)
    expected = Attended(scores.softmax(-1)[..., :9] @ values, scores.logsumexp(-1))
    plain = flash(q, k, v, scale=SCALE)
    torch.testing.assert_close(with_sinks(plain, sinks), expected)
    assert with_sinks(plain, None) is plain


def test_a_gpu_takes_one_call_for_last_tokens_for_a_window_and_for_texts() -> None:
    q, k = (torch.empty(1, heads, 64, D, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    bounds = torch.empty(5, dtype=torch.int32, device="meta")
    with counted() as work:
        last = flash_last(q[:, :, -5:], k, k, scale=SCALE)
        windowed = flash_window(q, k, k, 8, scale=SCALE)
        texts = flash_each(q, k, k, (16, 16, 20, 12), scale=SCALE, bounds=bounds)
    assert work.launches == 3
    assert (last.out.shape, last.lse.shape) == ((1, 4, 5, D), (1, 4, 5))
    pairs = sum(range(60, 65))  # each sees all before it
    assert max(op.flops for op in work.operations) >= 4 * 4 * D * pairs
    for out, lse in (windowed, texts):
        assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
        assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    wide = q.float(), k.float(), k.float()
    with counted() as work:
        flash(*wide, scale=SCALE, causal=True)
    assert "_scaled_dot_product_efficient_attention" in {op.name for op in work.operations}


def test_attention_to_no_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="no keys"):  # PyTorch's kernel ends the process
        flash(*_tensors(1, 0), scale=SCALE)
