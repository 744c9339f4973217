"""Wilson's interval."""

from __future__ import annotations

import pytest

from rag_middle.demo.intervals import wilson


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    [
        # By hand, from (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n) with z = 1.959964.
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (50, 100, 0.403832, 0.596168),
        (1, 1, 0.206549, 1.0),
    ],
)
def test_intervals_are_wilsons(right: int, asked: int, low: float, high: float) -> None:
    found = wilson(right, asked)
    assert found.value == right / asked
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
    assert found.low <= found.value <= found.high


def test_more_confidence_is_wider() -> None:
    assert wilson(50, 100, 0.99).low < wilson(50, 100).low
