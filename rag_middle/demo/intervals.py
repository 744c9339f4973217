"""The interval of a share."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from rag_middle.evaluation import Estimate

__all__ = ["wilson"]


def wilson(right: int, asked: int, confidence: float = 0.95) -> Estimate:
    """A share with Wilson's score interval.

    Unlike a bootstrap interval it has a width where all or none of the answers are right.

    Args:
        right: how many were.
        asked: of how many, at least one.
        confidence: of the interval.
    """
    share = right / asked
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = share + z * z / (2 * asked)
    half = z * sqrt(share * (1 - share) / asked + (z / (2 * asked)) ** 2)
    scale = 1 + z * z / asked
    # At the ends the formula gives the share itself, up to rounding.
    return Estimate(
        share, max(0.0, min(share, (centre - half) / scale)), min(1.0, (centre + half) / scale)
    )
