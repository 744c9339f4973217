"""Which of many curves are worth scoring, by what curves like them reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["expected_ranks"]

#: Root mean square over the layers, at which a curve's say has fallen to 1/e: half of the most
#: that a mutation moves a control point.
_NEAR = 0.1
#: Say of a curve however far away, so that where nothing is near, the mean of all is expected.
_FAR = 1e-12


def expected_ranks(
    curves: Sequence[Sequence[float]], known: Mapping[tuple[float, ...], tuple[float, ...]]
) -> list[float]:
    """The share of known curves that each curve is expected to be as good as, from 0 to 1.

    The mean of the known curves' own ranks, weighted by nearness (Nadaraya-Watson regression with
    a Gaussian kernel). Ranks, and not scores, so that it does not matter on what scale fitness is
    measured, nor how much worse bad ones are.

    Args:
        curves: factors of every layer.
        known: fitness by curve, higher being better; equals share a rank.
    """
    if not curves or not known:
        return [0.5] * len(curves)
    apart = np.asarray(curves)[:, None] - np.asarray(list(known))[None]  # [curves, known, layers]
    weights = np.exp(-np.square(apart).mean(-1) / _NEAR**2) + _FAR
    expected = weights @ np.asarray(_ranks(list(known.values()))) / weights.sum(-1)
    # Sums differ in their last digits between machines; what is as good must not.
    rounded: list[float] = expected.round(9).tolist()
    return rounded


def _ranks(fitness: Sequence[tuple[float, ...]]) -> list[float]:
    """The rank of each, the mean one of those that are equal, as shares of all."""
    ascending = sorted(fitness)
    first, last = ascending.index, {each: i for i, each in enumerate(ascending, start=1)}
    return [(first(each) + 1 + last[each]) / 2 / len(fitness) for each in fitness]
