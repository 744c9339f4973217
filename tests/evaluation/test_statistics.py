"""Intervals against scipy, gaps against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.statistics import Estimate, Resampled, flip_rate

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    rng = np.random.default_rng(7)
    return (rng.random((120, 3)) < [0.7, 0.4, 0.55]).astype(float)


def test_intervals_of_means_agree_with_scipy(scores: np.ndarray) -> None:
    ours = Resampled(scores, resamples=10_000, seed=1).estimates()
    for column, estimate in zip(scores.T, ours, strict=True):
        theirs = scipy_stats.bootstrap(
            (column,), np.mean, n_resamples=10_000, method="percentile", rng=2
        ).confidence_interval
        assert estimate.value == column.mean()
        # Two bootstraps with different draws; means move in steps of 1/120.
        assert estimate.low == pytest.approx(theirs.low, abs=0.01)
        assert estimate.high == pytest.approx(theirs.high, abs=0.01)


def test_intervals_of_paired_differences_agree_with_scipy(scores: np.ndarray) -> None:
    ours = Resampled(scores, seed=1).estimate(lambda means: means[..., 0] - means[..., 1])
    theirs = scipy_stats.bootstrap(
        (scores[:, 0], scores[:, 1]),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        rng=2,
    ).confidence_interval
    assert ours.value == pytest.approx(scores[:, 0].mean() - scores[:, 1].mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_a_difference_that_every_question_shares_has_no_width() -> None:
    first = np.linspace(0, 1, 30)
    drawn = Resampled(np.stack([first, first + 0.25], axis=1))
    difference = drawn.estimate(lambda means: means[..., 1] - means[..., 0])
    assert difference.low == pytest.approx(0.25)
    assert difference.high == pytest.approx(0.25)


def test_the_gap_of_a_flat_curve_is_told_apart_from_zero_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(0)
    trials = 200
    found = sum(
        not Resampled((rng.random((80, 5)) < 0.6).astype(float), resamples=800).gap().includes_zero
        for _ in range(trials)
    )
    # Promised: 5 %. Four standard deviations of a count with that rate are added.
    assert found <= 0.05 * trials + 4 * np.sqrt(0.05 * 0.95 * trials)


def test_a_naive_interval_of_the_gap_never_includes_zero() -> None:
    """Why `gap` is not a percentile interval."""
    rng = np.random.default_rng(0)
    drawn = Resampled((rng.random((80, 5)) < 0.6).astype(float))
    naive = drawn.estimate(lambda means: np.ptp(means, axis=-1))
    assert not naive.includes_zero
    assert drawn.gap().includes_zero


def test_a_wide_gap_is_found() -> None:
    rng = np.random.default_rng(3)
    scores = (rng.random((100, 5)) < [0.8, 0.5, 0.4, 0.5, 0.8]).astype(float)
    gap = Resampled(scores).gap()
    assert gap.low > 0.1
    assert gap.low < 0.4 < gap.high


def test_the_same_seed_draws_the_same_questions(scores: np.ndarray) -> None:
    both = Resampled(scores, seed=4).resampled_means
    alone = Resampled(scores[:, :1], seed=4).resampled_means
    assert np.array_equal(both[:, :1], alone)


def test_answers_flip_between_orders() -> None:
    assert flip_rate(["a", "a", "a"]) == 0
    assert flip_rate(["a", "b", "c"]) == 1
    assert flip_rate(["a", "a", "b"]) == pytest.approx(2 / 3)
    with pytest.raises(EvaluationConfigError, match="at least two orders"):
        flip_rate(["a"])


@pytest.mark.parametrize("scores", [np.zeros((0, 2)), np.zeros(3), np.zeros((2, 0))])
def test_scores_of_another_shape_are_refused(scores: np.ndarray) -> None:
    with pytest.raises(EvaluationConfigError, match="questions, columns"):
        Resampled(scores)


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(EvaluationConfigError, match="finite"):
        Resampled(np.array([[0.0, np.nan]]))


def test_the_ends_of_an_interval_belong_to_it() -> None:
    assert Estimate(0.1, 0.0, 0.2).includes_zero
    assert not Estimate(0.1, 0.01, 0.2).includes_zero
