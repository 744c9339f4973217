"""The shape of an accuracy curve over positions, named from all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rag_middle.evaluation.statistics import Bootstrap

Array = NDArray[np.float64]

ShapeName = Literal[
    "U",
    "inverted U",
    "primacy",
    "recency",
    "primacy deficit",
    "recency deficit",
    "flat",
    "irregular",
]

SHAPES: Mapping[ShapeName, str] = {
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

    name: ShapeName
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
    turns, rises_first = _turns(curves, step)
    first, last = curves[:, 0], curves[:, -1]
    inside = curves[:, 1:-1] if curves.shape[1] > 2 else curves
    above_middle = np.minimum(first, last) - inside.min(axis=1) > step
    below_middle = inside.max(axis=1) - np.maximum(first, last) > step
    high = high_positions(curves)
    mostly_high = 2 * high.sum(axis=1) > curves.shape[1]
    return np.select(
        [
            turns == 0,
            (turns == 2) & ~rises_first & above_middle,
            (turns == 2) & rises_first & below_middle,
            (turns == 1) & rises_first & high[:, -1] & ~mostly_high,
            (turns == 1) & rises_first,
            (turns == 1) & high[:, 0] & ~mostly_high,
            turns == 1,
        ],
        ["flat", "U", "inverted U", "recency", "primacy deficit", "primacy", "recency deficit"],
        default="irregular",
    )


def high_positions(curves: Array) -> NDArray[np.bool_]:
    """Where curves `[..., positions]` are about as high as at their best, as booleans."""
    best = curves.max(axis=-1, keepdims=True)
    spread = np.ptp(curves, axis=-1)[..., None]
    return np.asarray(best - curves < _NOTICEABLE * spread + _ROUNDING)


def _turns(curves: Array, step: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many rises and falls of more than `step` follow one another, and whether a rise is first.

    `curves` is `[curves, positions]`, `step` is `[curves]`.
    """
    count = np.zeros(len(curves), dtype=np.int64)
    rises_first = np.zeros(len(curves), dtype=bool)
    direction = np.zeros(len(curves), dtype=np.int64)
    low, high = curves[:, 0].copy(), curves[:, 0].copy()  # since the last turn
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
