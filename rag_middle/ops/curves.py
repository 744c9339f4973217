"""Curves over layers: the cubic Bézier of LPES (arXiv:2606.27705, equations 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["bezier_factors"]

Point = tuple[float, float]


def bezier_factors(points: Sequence[Point], num_layers: int) -> tuple[float, ...]:
    """Heights of a cubic Bézier curve at evenly spaced abscissae, one per layer.

    Layer ``j`` lies at ``x_j = P0x + (P3x - P0x) j / (L - 1)``; its factor is ``y(t)`` for the
    ``t`` with ``x(t) = x_j``, found by bisection (``x`` rises strictly with ``t``).

    Args:
        points: four control points ``(x, y)`` with strictly rising ``x``.
        num_layers: ``L``.

    Raises:
        ValueError: not four points, or abscissae that do not rise.
    """
    if len(points) != 4:
        raise ValueError(f"a cubic Bézier curve has 4 control points, got {len(points)}")
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    if any(right <= left for left, right in pairwise(xs)):
        raise ValueError(f"control points must have strictly rising x, got {xs}")
    if num_layers == 1:
        return (ys[0],)
    factors = []
    for layer in range(num_layers):
        target = xs[0] + (xs[3] - xs[0]) * layer / (num_layers - 1)
        low, high = 0.0, 1.0
        for _ in range(60):  # halves the interval to below float precision
            middle = (low + high) / 2
            if _bernstein(xs, middle) < target:
                low = middle
            else:
                high = middle
        factors.append(_bernstein(ys, (low + high) / 2))
    return tuple(factors)


def _bernstein(values: Sequence[float], t: float) -> float:
    a, b, c, d = values
    u = 1 - t
    return u**3 * a + 3 * u**2 * t * b + 3 * u * t**2 * c + t**3 * d
