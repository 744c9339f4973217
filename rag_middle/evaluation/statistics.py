"""Means, gaps and their intervals, by resampling questions.

Everything is resampled over *questions*: the scores of one question at several positions and under
several methods stay together, so differences between positions and methods are paired. The same
seed draws the same questions whatever is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EvaluationConfigError

__all__ = [
    "Estimate",
    "Resampled",
    "flip_rate",
    "interval",
]

Array = NDArray[np.float64]
RESAMPLES = 10_000
CONFIDENCE = 0.95
_AT_ONCE = 500  # resamples in memory together
_KEPT_DRAWS = 20_000_000  # counts of two bytes that are kept for the next statistic


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its bootstrap interval.

    Attributes:
        value: from the data.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def includes_zero(self) -> bool:
        """Whether zero lies in the interval, its ends included."""
        return self.low <= 0 <= self.high

    def to_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)


def interval(resampled: Array, confidence: float = CONFIDENCE) -> tuple[Any, Any]:
    """Percentile interval of resampled values along their first axis."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside], axis=0)
    return low, high


class Resampled:
    """Column means of scores, and the same for resampled questions.

    Args:
        scores: `[questions, columns]`, e.g. one column per position.
        resamples: how many times questions are drawn with replacement.
        seed: of the draws.

    Raises:
        EvaluationConfigError: no questions, or scores that are not finite.
    """

    def __init__(self, scores: Array, *, resamples: int = RESAMPLES, seed: int = 0) -> None:
        scores = np.asarray(scores, dtype=np.float64)
        if scores.ndim != 2 or not scores.shape[0] or not scores.shape[1]:
            raise EvaluationConfigError(
                f"Scores should be [questions, columns] with at least one of each, got shape "
                f"{scores.shape}."
            )
        if not np.isfinite(scores).all():
            raise EvaluationConfigError("Scores must be finite numbers; some are not.")
        self.questions = scores.shape[0]
        self.means: Array = scores.mean(axis=0)
        self.resampled_means: Array = _resampled_means(scores, resamples, seed)

    def estimate(
        self, statistic: Callable[[Array], Array], confidence: float = CONFIDENCE
    ) -> Estimate:
        """A function of the column means, with its percentile interval.

        Args:
            statistic: takes `[..., columns]`, gives `[...]`.
            confidence: of the interval.
        """
        low, high = interval(statistic(self.resampled_means), confidence)
        return Estimate(float(statistic(self.means)), float(low), float(high))

    def estimates(self, confidence: float = CONFIDENCE) -> tuple[Estimate, ...]:
        """Each column's mean."""
        low, high = interval(self.resampled_means, confidence)
        return tuple(
            Estimate(float(m), float(a), float(b))
            for m, a, b in zip(self.means, low, high, strict=True)
        )

    def gap(self, confidence: float = CONFIDENCE) -> Estimate:
        """Best column minus worst, with an interval that may include zero.

        The best of several noisy means lies above the worst even where all are equal, so a plain
        bootstrap interval of their difference never includes zero. Here the half-width is the
        quantile of the *range of the resampled deviations*, ``max_j e_j - min_j e_j`` with
        ``e = resampled mean - mean``: the interval holds for all pairs of columns at once (Tukey's
        simultaneous intervals, bootstrapped), and looking for the largest gap is paid for.
        """
        deviations = self.resampled_means - self.means
        half = float(np.quantile(np.ptp(deviations, axis=1), confidence))
        value = float(np.ptp(self.means))
        return Estimate(value, value - half, value + half)


def _resampled_means(scores: Array, resamples: int, seed: int) -> Array:
    """`[resamples, columns]`: means of questions drawn with replacement."""
    questions = len(scores)
    draws = _cached_draws if questions * resamples <= _KEPT_DRAWS else _draws
    # How often each question is drawn says as much as which ones were, in one product.
    return np.concatenate(
        [counts @ scores / questions for counts in draws(questions, resamples, seed)]
    )


def _draws(questions: int, resamples: int, seed: int) -> Iterator[NDArray[np.uint16]]:
    """How often each question is drawn, `[resamples, questions]`, in pieces."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, _AT_ONCE):
        rows = min(_AT_ONCE, resamples - start)
        drawn = rng.integers(questions, size=(rows, questions))
        flat = (drawn + questions * np.arange(rows)[:, None]).ravel()
        counts = np.bincount(flat, minlength=rows * questions)
        yield counts.reshape(rows, questions).astype(np.uint16)


@lru_cache(maxsize=2)
def _cached_draws(questions: int, resamples: int, seed: int) -> tuple[NDArray[np.uint16], ...]:
    """The same: every method and statistic of a run wants the same draws."""
    return tuple(_draws(questions, resamples, seed))


def flip_rate(answers: Sequence[object]) -> float:
    """Share of pairs of orders in which one question got different answers.

    The chance that an answer changes when the documents are shuffled again; it does not depend on
    how many orders were tried, as the share of questions with any change would.

    Args:
        answers: of one question, one per order, comparable.

    Raises:
        EvaluationConfigError: fewer than two.
    """
    if len(answers) < 2:
        raise EvaluationConfigError("Answers can only flip between at least two orders.")
    pairs = list(combinations(answers, 2))
    return sum(first != second for first, second in pairs) / len(pairs)
