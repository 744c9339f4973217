"""Log-sum-exps of attention scores against whole matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.ops import lse
from rag_middle.ops.flash import flash
from rag_middle.ops.lse import logsumexp_rows

N, D, SCALE = 11, 8, 0.4


def _tensors(heads: int = 4, groups: int = 2, rows: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads + groups)
    return (
        torch.randn(rows, heads, N, D, generator=generator),
        torch.randn(rows, groups, N, D, generator=generator),
        torch.randn(rows, groups, N, D, generator=generator),
    )


def _scores(query: Tensor, key: Tensor, hidden: Tensor, softcap: float | None = None) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = SCALE * query @ key.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(hidden, float("-inf"))


def _causal() -> Tensor:
    return torch.ones(N, N).triu(1).bool()


def _padded(padding: list[int]) -> Tensor:
    """Hidden keys `[b, 1, n, n]`: later ones, and padding on the left."""
    columns = torch.arange(N)
    return _causal() | (columns < torch.tensor(padding)[:, None])[:, None, None, :]


def _real(values: Tensor, padding: list[int]) -> Tensor:
    """The rows of real tokens, one after the other."""
    return torch.cat([row[:, pad:].flatten() for row, pad in zip(values, padding, strict=True)])


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (3, 1)])
def test_causal_attention_and_its_log_sum_exp(heads: int, groups: int) -> None:
    query, key, value = _tensors(heads, groups)
    out, rows = flash(query, key, value, scale=SCALE, causal=True)
    scores = _scores(query, key, _causal())
    torch.testing.assert_close(rows, scores.logsumexp(-1))
    values = value.repeat_interleave(heads // groups, dim=1)
    torch.testing.assert_close(out, scores.softmax(-1) @ values)
    torch.testing.assert_close(logsumexp_rows(query, key, mask=None, scale=SCALE), rows)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_hide_padding_and_keep_padded_rows_finite(kind: str) -> None:
    padding = [0, 4]
    query, key, _ = _tensors()
    hidden = _padded(padding)
    mask = ~hidden
    if kind == "additive":
        mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    scores = _scores(query, key, hidden)
    blocks = logsumexp_rows(query, key, mask=mask, scale=SCALE)
    expected = _real(scores.logsumexp(-1), padding)
    torch.testing.assert_close(_real(blocks, padding), expected)
    assert blocks.isfinite().all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"softcap": 1.5},
        {"window": 3},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"softcap": 1.5, "window": 4, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ],
    ids=lambda settings: "+".join(settings) or "plain",
)
@pytest.mark.parametrize("block", [1 << 22, 8 * N, 1])
def test_what_families_add_to_their_scores(
    settings: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lse, "_BLOCK_ELEMENTS", block)  # few rows at a time give the same
    padding = [0, 4]
    query, key, _ = _tensors()
    hidden = _padded(padding)
    if "window" in settings:
        row = torch.arange(N)[:, None]
        hidden = hidden | (row - torch.arange(N) >= settings["window"])
    scores = _scores(query, key, hidden, settings.get("softcap"))
    if "sinks" in settings:
        extra = settings["sinks"][None, :, None, None].expand(2, 4, N, 1)
        scores = torch.cat((scores, extra), dim=-1)
    rows = logsumexp_rows(
        query, key, mask=None, scale=SCALE, padding=torch.tensor(padding), **settings
    )
    torch.testing.assert_close(_real(rows, padding), _real(scores.logsumexp(-1), padding))
