"""Bézier curves over layers against very many points on them."""

import pytest

from rag_middle.ops.curves import curve_factors
from tests.reference.position_scaling import bezier_by_sampling

Points = list[tuple[float, float]]

CURVES: tuple[Points, ...] = (
    [(0, 1.5), (10, 1.5), (20, 1.5), (31, 1.5)],
    [(0, 1.0), (10, 1.9), (20, 1.1), (31, 2.0)],
    [(0, 2.0), (1, 1.0), (2, 1.0), (31, 1.3)],
    [(3, 1.2), (28, 1.8), (29, 1.0), (30, 1.7)],
)


@pytest.mark.parametrize("points", CURVES, ids=str)
@pytest.mark.parametrize("layers", [2, 7, 32])
def test_factors_lie_on_the_curve(points: Points, layers: int) -> None:
    sampled = bezier_by_sampling(points, layers)
    # The nearest of 200,001 samples is off by a few 1e-5 where the curve is steep.
    assert curve_factors(points, layers, "bezier") == pytest.approx(sampled, abs=1e-4)


def test_a_line_is_straight_between_its_points() -> None:
    points = [(0, 1.0), (1, 2.0), (3, 1.0)]
    assert curve_factors(points, 7, "linear") == pytest.approx([1, 1.5, 2, 1.75, 1.5, 1.25, 1])


def test_steps_keep_the_height_of_the_last_point_passed() -> None:
    points = [(0, 1.2), (2, 1.5), (5, 1.1)]
    assert curve_factors(points, 6, "step") == (1.2, 1.2, 1.5, 1.5, 1.5, 1.1)


@pytest.mark.parametrize("points", [2, 3, 5])
def test_a_bezier_curve_of_any_degree_through_points_on_a_line_is_the_line(points: int) -> None:
    line = [(k, 1 + 0.1 * k) for k in range(points)]
    expected = [1 + 0.1 * (points - 1) * layer / 8 for layer in range(9)]
    assert curve_factors(line, 9, "bezier") == pytest.approx(expected)
