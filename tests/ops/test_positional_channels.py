"""Finding channels that carry position among channels made to carry it, or not."""

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from rag_middle.methods.positional_hidden_states.channels import (
    channel_smoothness,
    channel_trends,
    rank_channels,
    savitzky_golay,
)
from tests.reference.positional_hidden_states import naive_trend

RISES, FALLS, WAVES, JAGGED, CHANGES_SIDES = range(5)  # and one more, which is flat
LAYERS, POSITIONS = 12, 400


@pytest.fixture
def hidden() -> torch.Tensor:
    """``[12, 400, 6]``: one channel of each kind, the same in every layer but for one."""
    x = torch.linspace(0, 1, POSITIONS, dtype=torch.float64)
    noise = torch.randn(LAYERS, POSITIONS, generator=torch.Generator().manual_seed(0))
    layers = torch.zeros(LAYERS, POSITIONS, 6, dtype=torch.float64)
    layers[:, :, RISES] = x.sqrt()
    layers[:, :, FALLS] = 1000 - 1e-3 * (x + x**2)
    layers[:, :, WAVES] = (2 * math.pi * x).sin()
    layers[:, :, JAGGED] = 4 * x + 0.3 * noise
    layers[:, :, CHANGES_SIDES] = x * torch.tensor([1.0, -1.0] * 6)[:, None]
    layers[:, 0, :] = 50  # the first token is an outlier everywhere
    return layers


def test_trends_are_seen_where_they_are(hidden: torch.Tensor) -> None:
    trends = channel_trends(hidden)
    assert trends.shape == (LAYERS, 6)
    assert trends[0].tolist() == [1, -1, 0, 1, 1, 0]
    assert trends[1, CHANGES_SIDES] == -1


@pytest.mark.parametrize("count", [4, 5, 30, 700])
def test_a_trend_is_that_of_the_fitted_values_and_not_of_their_slope(count: int) -> None:
    """Cubics that turn at, between and beyond positions, at the ends and on plateaus."""
    ends = [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
    turns = sorted({*ends, *(count - 1 - end for end in ends), (count - 1) / 2, 1e6})
    x = np.arange(count, dtype=np.float64)
    curves = [np.ones(count), x, -x, x**2, (x - count + 1.5) ** 2, np.sign(x - count / 2)]
    for first, second in combinations_with_replacement(turns, 2):  # slope (x - first)(x - second)
        curves.append(x**3 / 3 - (first + second) * x**2 / 2 + first * second * x)
    rng = np.random.default_rng(count)
    curves += [np.cumsum(rng.normal(0.1, 1, count)) for _ in range(50)]
    early = np.full((3, len(curves)), 1e4) * rng.normal(size=(3, len(curves)))  # outliers
    columns = np.concatenate([early, np.stack(curves, axis=1)])
    trends = channel_trends(torch.from_numpy(columns)[None], skip=3)[0]
    assert trends.tolist() == [naive_trend(column, 3) for column in columns.T]
    assert set(trends.tolist()) == {-1, 0, 1}


def test_smoothness_does_not_depend_on_scale_or_offset(hidden: torch.Tensor) -> None:
    moved = hidden * -7 + 3
    torch.testing.assert_close(
        channel_smoothness(hidden)[:, JAGGED], channel_smoothness(moved)[:, JAGGED]
    )


def test_candidates_come_smoothest_first_with_their_layers(hidden: torch.Tensor) -> None:
    ranked = rank_channels(hidden)
    scores = [each.smoothness for each in ranked]
    assert scores == sorted(scores)
    assert ranked[-1].channel == JAGGED
    found = {each.channel: each for each in ranked}
    assert set(found) == {RISES, FALLS, JAGGED, CHANGES_SIDES}
    assert found[FALLS].direction == -1
    assert found[RISES].layers == tuple(range(2, LAYERS - 1))
    # It rises in five of the inner layers and falls in four: algorithm 1 counts both.
    assert found[CHANGES_SIDES].direction == 1
    assert found[CHANGES_SIDES].layers == tuple(range(2, LAYERS - 1))
    theirs = {each.channel: each.layers for each in rank_channels(hidden, reference_code=True)}
    assert theirs[CHANGES_SIDES] == (2, 4, 6, 8, 10)


def test_smoothness_is_added_over_layers_or_the_smallest_taken(hidden: torch.Tensor) -> None:
    each = channel_smoothness(hidden)[2:-1, JAGGED]
    added = {c.channel: c.smoothness for c in rank_channels(hidden)}
    smallest = {c.channel: c.smoothness for c in rank_channels(hidden, reference_code=True)}
    assert added[JAGGED] == pytest.approx(float(each.sum()))
    assert smallest[JAGGED] == pytest.approx(float(each.min()))


@pytest.mark.parametrize("window", [9, 10])
def test_a_polynomial_of_the_smoothing_order_is_left_alone(window: int) -> None:
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)
    cubic = x**3 - 2 * x
    smooth = savitzky_golay(cubic, window=window, order=3)
    assert smooth.shape == cubic.shape
    # Read between two positions where the window is even.
    between = (x + (x[1] - x[0]) / 2) if window % 2 == 0 else x
    inner = slice(window // 2, -window // 2)
    expected = between**3 - 2 * between
    torch.testing.assert_close(smooth[inner], expected[inner])
    torch.testing.assert_close(smooth[: window // 2], cubic[: window // 2])
    torch.testing.assert_close(smooth[-(window // 2) :], cubic[-(window // 2) :])


def test_too_short_a_text_is_refused(hidden: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="400 positions less the first 395 leave 5"):
        channel_smoothness(hidden, skip=395)
