"""Intervals against scipy, gaps against simulation."""

import numpy as np
import pytest

from rag_middle.evaluation.statistics import Bootstrap, Estimate, consistency, shape_of

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    rng = np.random.default_rng(7)
    return (rng.random((120, 3)) < [0.7, 0.4, 0.55]).astype(float)


def test_intervals_of_paired_differences_agree_with_scipy(scores: np.ndarray) -> None:
    ours = Bootstrap(scores, seed=1).estimate(lambda means: means[..., 0] - means[..., 1])
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


@pytest.mark.parametrize("right", [0, 6])
def test_answers_that_are_all_alike_have_the_exact_interval(right: int) -> None:
    expected = scipy_stats.binomtest(right, 6).proportion_ci(0.95, "exact")
    [found] = Bootstrap(np.full((6, 1), right / 6)).estimates()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_the_gap_of_a_flat_curve_is_significant_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(0)
    trials = 200
    wrong = sum(
        not Bootstrap((rng.random((80, 5)) < 0.6).astype(float), resamples=800).gap().includes_zero
        for _ in range(trials)
    )
    # Promised: 5 %. Four standard deviations of a count with that rate are added.
    assert wrong <= 0.05 * trials + 4 * np.sqrt(0.05 * 0.95 * trials)


CURVES = {
    "a plateau of the unmodified model": ([0.95, 0.6, 0.6, 0.6, 0.6], [0.95, 0.9, 0.6, 0.9, 0.95]),
    "a plateau of ten": ([0.9] + [0.6] * 9, [0.9, 0.6] + [0.7] * 8),
    "a flat bottom": ([0.9, 0.6, 0.6, 0.6, 0.9], [0.9, 0.75, 0.6, 0.75, 0.9]),
    "a plateau of the method": ([0.9, 0.8, 0.6, 0.8, 0.9], [0.6] * 5),
    "nearly a plateau": ([0.95, 0.62, 0.6, 0.62, 0.64], [0.95, 0.8, 0.6, 0.8, 0.95]),
    "one lowest": ([0.95, 0.9, 0.6, 0.9, 0.95], [0.95, 0.9, 0.6, 0.9, 0.95]),
}


def drawn(rng: np.random.Generator, chances: list[float], questions: int) -> np.ndarray:
    """Scores of 0 and 1, a difficulty of each question shared by its columns."""
    difficulty, own = rng.normal(size=(questions, 1)), rng.normal(size=(questions, len(chances)))
    return ((difficulty + own) / np.sqrt(2) < scipy_stats.norm.ppf(chances)).astype(float)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.one_in(6)
def test_the_lowest_of_several_is_found_lower_as_rarely_as_promised(name: str) -> None:
    base, own = CURVES[name]
    rng = np.random.default_rng(5)
    trials = 200
    missed_lowest = above = below = 0
    for _ in range(trials):
        scores = drawn(rng, base + own, 150)
        gain = Bootstrap(scores, resamples=500).least_gain()
        truth = min(own) - min(base)
        above += gain.low > truth + 1e-9
        below += gain.high < truth - 1e-9
        lowest = Bootstrap(scores[:, : len(base)], resamples=500).least()
        missed_lowest += not lowest.low - 1e-9 <= min(base) <= lowest.high + 1e-9
    assert above <= 0.06 * trials  # 2.5 % at each end, and room for luck
    assert below <= 0.06 * trials
    assert missed_lowest <= 0.1 * trials


def test_answers_agree_or_not_over_orders() -> None:
    def values(*answers: str) -> list[float]:
        own = consistency([answers])
        return [own.flip_rate.value, own.changed.value]

    assert values("a", "a", "a") == [0, 0]
    assert values("a", "b", "c", "d") == [1, 1]
    assert values("a", "a", "b") == pytest.approx([2 / 3, 1])
    # Two questions of two, one of which never changes: means of both.
    both = consistency(["aa", "ab"])
    assert (both.flip_rate.value, both.changed.value) == (0.5, 0.5)
    assert not both.changed.exact
    assert consistency(["aa", "bb"]).changed.exact


def test_estimates_as_text() -> None:
    assert Estimate(0.5, 0.4, 0.6).text(share=True) == "50.0 [40.0, 60.0]"
    assert Estimate(-1.5, -2, 0).text(share=False) == "−1.50 [−2.00, 0.00]"
    signed = Estimate(0.05, -0.0001, 0.6).text(share=True, signed=True)
    assert signed == "+5.0 [0.0, +60.0]"


@pytest.mark.parametrize("questions", [20, 30, 50])
@pytest.mark.one_in(3)
def test_an_interval_that_ends_at_zero_is_not_significant(questions: int) -> None:
    """Means of right and wrong are multiples of 1/n, so intervals often end at 0 exactly."""
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(100):
        right = (rng.random((questions, 5)) < [0.8, 0.7, 0.55, 0.7, 0.8]).astype(float)
        bootstrap = Bootstrap(right, resamples=500)
        estimates = [
            bootstrap.gap(),
            bootstrap.estimate(lambda m: np.mean(m[..., 2:], -1) - np.mean(m[..., :2], -1)),
        ]
        ends += [estimate for estimate in estimates if abs(estimate.low) < 1e-9]
        flat = shape_of(bootstrap).name == "flat"
        assert flat or not estimates[0].includes_zero  # a report says both
    assert len(ends) > 5
    assert all(estimate.includes_zero for estimate in ends)
