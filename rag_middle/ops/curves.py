"""Curves over layers: those of LPES (arXiv:2606.27705, equations 3 to 5, and its ablations)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import comb
from typing import Literal, get_args

Point = tuple[float, float]

#: How factors lie between control points: on the Bézier curve of all of them, on straight lines
#: from one to the next, or at the height of the last one passed.
Curve = Literal["bezier", "linear", "step"]


def curve_factors(points: Sequence[Point], num_layers: int, curve: Curve) -> tuple[float, ...]:
    """Heights of a curve at evenly spaced abscissae from its first point to its last, by layer.

    Layer ``j`` lies at ``x_j = P0x + (PNx - P0x) j / (L - 1)``. On a Bézier curve its factor is
    ``y(t)`` for the ``t`` with ``x(t) = x_j``, which bisection finds: ``x`` rises with ``t``.

    Args:
        points: at least two control points ``(x, y)`` with strictly rising ``x``.
        num_layers: ``L``.
        curve: see `Curve`; a Bézier curve of ``k`` points is of degree ``k - 1``.

    Raises:
        ValueError: fewer than two points, abscissae that do not rise, or no such curve.
    """
    if curve not in get_args(Curve):
        raise ValueError(f"a curve is one of {', '.join(get_args(Curve))}, got {curve!r}")
    if len(points) < 2:
        raise ValueError(f"a curve has at least 2 control points, got {len(points)}")
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    if any(right <= left for left, right in pairwise(xs)):
        raise ValueError(f"control points must have strictly rising x, got {xs}")
    height = {"bezier": _bezier, "linear": _linear, "step": _step}[curve]
    if num_layers == 1:
        return (ys[0],)
    span = xs[-1] - xs[0]
    return tuple(
        height(xs, ys, xs[0] + span * layer / (num_layers - 1)) for layer in range(num_layers)
    )


def _bezier(xs: Sequence[float], ys: Sequence[float], target: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):  # halves the interval to below float precision
        middle = (low + high) / 2
        if _bernstein(xs, middle) < target:
            low = middle
        else:
            high = middle
    return _bernstein(ys, (low + high) / 2)


def _bernstein(values: Sequence[float], t: float) -> float:
    degree, u = len(values) - 1, 1 - t
    return sum(comb(degree, k) * u ** (degree - k) * t**k * value for k, value in enumerate(values))


def _linear(xs: Sequence[float], ys: Sequence[float], target: float) -> float:
    left = _passed(xs[:-1], target)
    share = (target - xs[left]) / (xs[left + 1] - xs[left])
    return (1 - share) * ys[left] + share * ys[left + 1]


def _step(xs: Sequence[float], ys: Sequence[float], target: float) -> float:
    return ys[_passed(xs, target)]


def _passed(xs: Sequence[float], target: float) -> int:
    """The last of `xs` that is not beyond `target`."""
    # A layer that lies on a point may miss it by a rounding error.
    return max(0, bisect_right(xs, target + 1e-9 * (xs[-1] - xs[0])) - 1)
