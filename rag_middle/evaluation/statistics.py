"""Every interval of a report: means, gaps and differences, by bootstrap over questions.

Everything is resampled over *questions*: the scores of one question at several positions and under
several methods stay together, so differences between positions and methods are paired. The same
seed draws the same questions whatever is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import ConfigError

Array = NDArray[np.float64]
RESAMPLES = 10_000
CONFIDENCE = 0.95
_CHUNK = 500  # resamples drawn at a time
_NEAR = 0.99  # quantile of the range of deviations within which a column may be the lowest


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval.

    Attributes:
        value: from the data.
        low: lower end of the interval.
        high: upper end.
        exact: a difference, gap or flip rate that is zero for every single question, so that
            there is nothing to estimate.
    """

    value: float
    low: float
    high: float
    exact: bool = False

    @property
    def includes_zero(self) -> bool:
        """Whether zero lies in the interval, its ends included: not statistically significant."""
        return self.low <= 0 <= self.high

    def text(self, *, share: bool, signed: bool = False) -> str:
        """``63.5 [60.1, 66.0]``; ``none seen`` where no question has any.

        Args:
            share: show per cent, with one digit after the point; else two.
            signed: write a plus sign, as for differences.
        """
        if self.exact:
            return "none seen"
        scale, digits = (100, 1) if share else (1, 2)
        numbers = (self.value, self.low, self.high)
        value, low, high = (
            # Adding 0.0 turns -0.0 into 0.0; zero has no sign.
            f"{number:{'+' if signed and number else ''}.{digits}f}".replace("-", "−")
            for number in (round(scale * x, digits) + 0.0 for x in numbers)
        )
        return f"{value} [{low}, {high}]"


#: Of a difference, gap or flip rate that is zero for every question.
NONE_SEEN = Estimate(0.0, 0.0, 0.0, exact=True)


class Bootstrap:
    """Column means of scores, and the same for resampled questions.

    Args:
        scores: `[questions, columns]`, at least one of each, e.g. one column per position.
        resamples: how many times questions are drawn with replacement.
        seed: of the draws.

    Raises:
        ConfigError: scores that are not finite.
    """

    def __init__(self, scores: Array, *, resamples: int = RESAMPLES, seed: int = 0) -> None:
        scores = np.asarray(scores, dtype=np.float64)
        if not np.isfinite(scores).all():
            raise ConfigError("Scores must be finite numbers; some are not.")
        questions = len(scores)
        self._all_wrong: Array = (scores == 0).all(axis=0)
        self._all_right: Array = (scores == 1).all(axis=0)
        self._unseen = 1 - ((1 - CONFIDENCE) / 2) ** (1 / questions)
        self._columns_agree = bool((scores == scores[:, :1]).all())
        self.means: Array = scores.mean(axis=0)
        # How often each question is drawn says as much as which ones were, in one product.
        self.resampled_means: Array = np.concatenate(
            [counts @ scores / questions for counts in _draws(questions, resamples, seed)]
        )

    def estimate(
        self, statistic: Callable[[Array], Array], confidence: float = CONFIDENCE
    ) -> Estimate:
        """A function of the column means, with its percentile interval.

        `statistic` takes `[..., columns]` and gives `[...]`.
        """
        low, high = np.quantile(statistic(self.resampled_means), _ends(confidence))
        return _estimate(statistic(self.means), low, high)

    def estimates(self) -> tuple[Estimate, ...]:
        """Each column's mean; with an exact (Clopper-Pearson) interval where all scores are 0 or 1.

        Resamples of equal scores are equal, however few they are.
        """
        low, high = np.quantile(self.resampled_means, _ends(CONFIDENCE), axis=0)
        low = np.where(self._all_right, 1 - self._unseen, low)
        high = np.where(self._all_wrong, self._unseen, high)
        return tuple(map(_estimate, self.means, low, high))

    def gap(self) -> Estimate:
        """Best column minus worst, with an interval that may include zero.

        The best of several noisy means lies above the worst even where all are equal, so a plain
        bootstrap interval of their difference never includes zero. Here the half-width is the
        quantile of the *range of the resampled deviations*, ``max_j e_j - min_j e_j`` with
        ``e = resampled mean - mean``: the interval holds for all pairs of columns at once (Tukey's
        simultaneous intervals, bootstrapped), and looking for the largest gap is paid for. Exact
        where every question scores the same in all columns.
        """
        if self._columns_agree:
            return NONE_SEEN
        deviations = self.resampled_means - self.means
        half = float(np.quantile(np.ptp(deviations, axis=1), CONFIDENCE))
        value = float(np.ptp(self.means))
        return _estimate(value, value - half, value + half)

    def least(self) -> Estimate:
        """The lowest column, with an interval as that of `least_difference`."""
        beside_zero = np.pad(self.resampled_means, ((0, 0), (0, 1)))
        return least_difference(np.append(self.means, 0.0), beside_zero, 1)

    def least_gain(self, confidence: float = CONFIDENCE) -> Estimate:
        """Lowest of the last half of the columns minus lowest of the first: `least_difference`."""
        half = len(self.means) // 2
        own_first = np.roll(self.resampled_means, half, axis=1)
        return least_difference(np.roll(self.means, half), own_first, half, confidence)


def least_difference(
    means: Array, resampled: Array, others: int, confidence: float = CONFIDENCE
) -> Estimate:
    """Lowest of the first columns minus lowest of the last, both being looked for.

    The lowest of several noisy means lies below what is lowest in truth, the more so the more
    columns are about as low, and resampling adds as much again: a plain bootstrap interval of the
    difference may miss the truth in most runs. Here every pair of an own and another column has
    one. The difference is at least that of the lowest own column and *any* other one, so the lower
    end is the greatest over the others of intervals that hold for all of them at once, and the
    smallest over the own columns, one of which is meant; the upper end the other way round. Others
    count that may be the lowest by what was observed (intersection bounds; Chernozhukov, Lee and
    Rosen 2013). Where each side has one such column, it is the percentile interval.

    Args:
        means: of the own columns, then of the others, `[columns]`.
        resampled: the same for resampled questions, `[resamples, columns]`.
        others: how many of the columns are others.
    """
    (own, other), errors = np.split(means, [-others]), resampled - means
    own_errors, other_errors = np.split(errors, [-others], axis=1)
    lower, upper = _ends(confidence)
    from_other = own_errors - _most_near(other, other_errors)
    from_own = _most_near(own, own_errors) - other_errors
    low = (own + np.quantile(from_other, lower, axis=0)).min() - other.min()
    high = own.min() - (other - np.quantile(from_own, upper, axis=0)).min()
    value = own.min() - other.min()
    return _estimate(value, min(low, value), max(high, value))


def _ends(confidence: float) -> tuple[float, float]:
    """The quantiles between which an interval lies."""
    outside = (1 - confidence) / 2
    return outside, 1 - outside


def _most_near(means: Array, errors: Array) -> Array:
    """The largest deviation of the columns that may be the lowest, `[resamples, 1]`."""
    within = np.quantile(np.ptp(errors, axis=1), _NEAR)
    most: Array = errors[:, means <= means.min() + within].max(axis=1, keepdims=True)
    return most


def _estimate(*values: SupportsFloat) -> Estimate:
    """Of a value and its ends: differences that are zero may miss it by rounding, either way."""
    value, low, high = (0.0 if abs(x) < 1e-12 else x for x in map(float, values))
    return Estimate(value, low, high)


def paired_difference(own: Array, other: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of `own` minus that of `other`, both `[questions]`, the same ones; exact where equal."""
    if np.array_equal(own, other):
        return NONE_SEEN
    return Bootstrap((own - other)[:, None]).estimate(lambda means: means[..., 0], confidence)


def comparison_confidence(methods: int) -> float:
    """Confidence of each difference from the unmodified model, so that all hold together (95 %).

    The one correction for multiple comparisons: Bonferroni's, over the methods that are compared
    in one run. Summaries, verdicts and reports all use it.
    """
    return 1 - (1 - CONFIDENCE) / max(1, methods)


@lru_cache(maxsize=2)
def _draws(questions: int, resamples: int, seed: int) -> tuple[NDArray[np.uint16], ...]:
    """How often each question is drawn, `[resamples, questions]`, in parts, as products are wide.

    Every method and statistic of a run wants the same draws.
    """
    rng, parts = np.random.default_rng(seed), []
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        drawn = rng.integers(questions, size=(rows, questions))
        flat = (drawn + questions * np.arange(rows)[:, None]).ravel()
        counts = np.bincount(flat, minlength=rows * questions)
        parts.append(counts.reshape(rows, questions).astype(np.uint16))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Consistency:
    """How much answers depend on the order of the documents; 0 is not at all.

    Attributes:
        flip_rate: chance that an answer changes when the documents are shuffled again; it does not
            depend on how many orders were tried, as `changed` does.
        changed: share of questions with more than one answer over the orders.
    """

    flip_rate: Estimate
    changed: Estimate


def consistency(answers: Sequence[Sequence[object]]) -> Consistency:
    """How much the answers to each question agree over orders of its documents.

    Exact where no question has two answers: nothing is estimated then.

    Args:
        answers: by question, one per order, at least two, comparable.
    """
    differs = [
        [first != second for first, second in combinations(of_question, 2)]
        for of_question in answers
    ]
    scores = np.array([[fmean(pairs), any(pairs)] for pairs in differs])
    if not scores.any():
        return Consistency(NONE_SEEN, NONE_SEEN)
    return Consistency(*Bootstrap(scores).estimates())


# -- the shape of a curve over positions ----------------------------------------------------------

#: What each name of a shape says.
SHAPES: Mapping[str, str] = {
    "U": "U-shape: scores are higher at both ends than in the middle",
    "inverted U": "inverted U: scores are higher in the middle than at both ends",
    "primacy": "primacy: scores are highest at the first positions and fall after them",
    "recency": "recency: scores are highest at the last positions",
    "primacy deficit": "primacy deficit: scores are lowest at the first positions",
    "recency deficit": "recency deficit: scores are lowest at the last positions",
    "flat": "flat: no two positions differ significantly",
    "irregular": "irregular: positions differ, without one rise or fall",
}

_NOTICEABLE = 0.25  # of the whole range: what differs less counts as level
_ROUNDING = 1e-12  # means that are equal may differ by it


@dataclass(frozen=True, slots=True)
class Shape:
    """What a curve looks like.

    A curve rises or falls where it does so significantly (by more than the gap's interval allows,
    `Bootstrap.gap`) and by at least a quarter of its range; smaller ups and downs count as level.

    Attributes:
        name: ``"flat"`` without a rise or fall; ``"U"`` for one fall and one rise after it, both
            ends that far above the lowest position between them; ``"inverted U"`` for the
            opposite. With one fall only, ``"primacy"``, or ``"recency deficit"`` where most
            positions, or not the first one, are about as good as the best (within a quarter of
            the range); with one rise only, ``"recency"`` or ``"primacy deficit"`` likewise.
            ``"irregular"`` otherwise.
        confidence: share of the resampled curves that get the same name.
    """

    name: str
    confidence: float


def shape_of(bootstrap: Bootstrap) -> Shape:
    """The shape of the column means of scores, columns being positions from first to last."""
    gap = bootstrap.gap()
    flat_within = gap.value - gap.low
    [name] = shape_names(bootstrap.means[None], flat_within)
    names = shape_names(bootstrap.resampled_means, flat_within)
    return Shape(name, float(np.mean(names == name)))


def shape_names(curves: Array, flat_within: float) -> NDArray[np.str_]:
    """The name of each of the curves `[curves, positions]`.

    Args:
        curves: at least two positions each.
        flat_within: positions that differ by at most this are not significantly different.
    """
    step = np.maximum(flat_within + _ROUNDING, _NOTICEABLE * np.ptp(curves, axis=1) - _ROUNDING)
    moves, rises_first = _rises_and_falls(curves, step)
    first, last = curves[:, 0], curves[:, -1]
    inside = curves[:, 1:-1] if curves.shape[1] > 2 else curves
    above_middle = np.minimum(first, last) - inside.min(axis=1) > step
    below_middle = inside.max(axis=1) - np.maximum(first, last) > step
    high = high_positions(curves)
    mostly_high = 2 * high.sum(axis=1) > curves.shape[1]
    return np.select(
        [
            moves == 0,
            (moves == 2) & ~rises_first & above_middle,
            (moves == 2) & rises_first & below_middle,
            (moves == 1) & rises_first & high[:, -1] & ~mostly_high,
            (moves == 1) & rises_first,
            (moves == 1) & high[:, 0] & ~mostly_high,
            moves == 1,
        ],
        ["flat", "U", "inverted U", "recency", "primacy deficit", "primacy", "recency deficit"],
        default="irregular",
    )


def high_positions(curves: Array) -> NDArray[np.bool_]:
    """Where curves `[..., positions]` are about as high as at their best, as booleans."""
    best = curves.max(axis=-1, keepdims=True)
    spread = np.ptp(curves, axis=-1)[..., None]
    return np.asarray(best - curves < _NOTICEABLE * spread + _ROUNDING)


def _rises_and_falls(curves: Array, step: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many rises and falls of more than `step` follow one another, and whether a rise is first.

    `curves` is `[curves, positions]`, `step` is `[curves]`.
    """
    count = np.zeros(len(curves), dtype=np.int64)
    rises_first = np.zeros(len(curves), dtype=bool)
    direction = np.zeros(len(curves), dtype=np.int64)
    low, high = curves[:, 0].copy(), curves[:, 0].copy()  # since it last changed direction
    for at in curves.T[1:]:
        low, high = np.minimum(low, at), np.maximum(high, at)
        rises = (at - low > step) & (direction <= 0)
        falls = (high - at > step) & (direction >= 0) & ~rises
        rises_first |= rises & (count == 0)
        count += rises | falls
        direction = np.where(rises, 1, np.where(falls, -1, direction))
        high = np.where(rises | falls, at, high)
        low = np.where(rises | falls, at, low)
    return count, rises_first
