"""Which of many curves are worth scoring, by what curves like them reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["expected_ranks"]

#: Root mean square over the layers, at which a curve's say has fallen to 1/e: half of the most
#: that a mutation moves a control point.
_NEAR = 0.1
#: Say of a curve however far away, so that where nothing is near, the mean of all is expected.
_FAR = 1e-12


def expected_ranks(
    curves: Sequence[Sequence[float]], known: Sequence[Sequence[float]]
) -> list[float]:
    """The rank that each curve is expected to have among known ones, 1 being the best.

    The mean of the known ranks, weighted by nearness (Nadaraya-Watson regression with a Gaussian
    kernel). Ranks, and not scores, so that it does not matter on what scale fitness is measured,
    nor how much worse bad ones are.

    Args:
        curves: factors of every layer.
        known: likewise, the worst one first.
    """
    if not curves or not known:
        return [0.5] * len(curves)
    ranks = np.arange(1, len(known) + 1) / len(known)
    apart = np.asarray(curves)[:, None] - np.asarray(known)[None]  # [curves, known, layers]
    weights = np.exp(-np.square(apart).mean(-1) / _NEAR**2) + _FAR
    expected: list[float] = (weights @ ranks / weights.sum(-1)).tolist()
    return expected
