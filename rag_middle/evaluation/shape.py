"""The name of a curve over gold positions, and how sure it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rag_middle.evaluation.statistics import CONFIDENCE, Resampled

__all__ = ["IN_WORDS", "Shape", "ShapeName", "named_shapes", "shape_of"]

ShapeName = Literal["U", "primacy", "recency", "flat", "irregular"]

IN_WORDS: dict[ShapeName, str] = {
    "U": "U-shape: first and last are read better than the middle",
    "primacy": "primacy: the first documents are read better than the last",
    "recency": "recency: the last documents are read better than the first",
    "flat": "flat: no two places can be told apart",
    "irregular": "irregular: places differ, but neither end stands out",
}

_NOTICEABLE = 0.25  # of the whole range; what differs less counts as level


@dataclass(frozen=True, slots=True)
class Shape:
    """What a curve looks like.

    Attributes:
        name: ``"flat"`` where its range is within the gap's interval (`Resampled.gap`); else with
            ``first``, ``last`` and ``middle`` (the mean of all places between) and a quarter of
            the range as what is noticeable: ``"U"`` where first and last both lie noticeably above
            the middle; ``"primacy"`` or ``"recency"`` where one end lies noticeably above the
            other; ``"irregular"`` otherwise.
        confidence: share of the resampled curves that get the same name.
    """

    name: ShapeName
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def shape_of(drawn: Resampled, *, higher_is_better: bool = True) -> Shape:
    """The shape of the column means, columns being places from first to last."""
    sign = 1.0 if higher_is_better else -1.0
    gap = drawn.gap(CONFIDENCE)
    flat_within = gap.value - gap.low
    [name] = named_shapes(sign * drawn.means[None], flat_within)
    names = named_shapes(sign * drawn.resampled_means, flat_within)
    return Shape(name, float(np.mean(names == name)))


def named_shapes(curves: NDArray[np.float64], flat_within: float) -> NDArray[np.str_]:
    """The name of each of the curves `[curves, places]`, higher being better.

    Args:
        curves: at least two places each.
        flat_within: a curve with at most this range is flat.
    """
    first, last = curves[:, 0], curves[:, -1]
    spread = np.ptp(curves, axis=1)
    noticeable = _NOTICEABLE * spread
    inside = curves[:, 1:-1]
    middle = inside.mean(axis=1) if inside.shape[1] else np.full(len(curves), np.inf)
    both_ends = (first - middle >= noticeable) & (last - middle >= noticeable)
    return np.select(
        [
            spread <= flat_within + 1e-12,  # equal up to rounding of the means
            both_ends,
            first - last >= noticeable,
            last - first >= noticeable,
        ],
        ["flat", "U", "primacy", "recency"],
        default="irregular",
    )
