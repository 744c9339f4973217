"""Which curves are worth scoring."""

from __future__ import annotations

import pytest

from rag_middle.calibration.searches.genetic import expected_ranks

BAD, MIDDLING, GOOD = (1.8, 1.8, 1.8), (1.5, 1.5, 1.5), (1.1, 1.1, 1.1)


def test_a_curve_is_expected_to_do_as_its_neighbours_did() -> None:
    known = {BAD: (0.1, -9.0), GOOD: (0.6, -2.0), MIDDLING: (0.1, -8.0)}
    ranks = expected_ranks([GOOD, (1.12, 1.1, 1.1), MIDDLING, BAD], known)
    assert ranks == pytest.approx([1.0, 1.0, 2 / 3, 1 / 3], abs=1e-3)  # all count a little


def test_between_two_curves_both_count() -> None:
    [rank] = expected_ranks(
        [(1.2, 1.2, 1.2)], {(1.25, 1.25, 1.25): (0.1,), (1.15, 1.15, 1.15): (0.2,)}
    )
    assert rank == pytest.approx(0.75)


def test_far_from_all_curves_the_mean_is_expected() -> None:
    assert expected_ranks([(9.0, 9.0, 9.0)], {BAD: (0.0,), GOOD: (1.0,)}) == pytest.approx([0.75])


def test_without_curves_or_knowledge_there_is_nothing_to_tell_them_apart() -> None:
    assert expected_ranks([BAD, GOOD], {}) == [0.5, 0.5]
    assert expected_ranks([], {BAD: (0.0,)}) == []


def test_equals_share_a_rank_whatever_their_order() -> None:
    fitness = {BAD: (0.5,), GOOD: (0.5,), MIDDLING: (0.9,)}
    one = expected_ranks([BAD, GOOD], fitness)
    assert one == pytest.approx([0.5, 0.5], abs=1e-3)
    assert expected_ranks([BAD, GOOD], dict(reversed(fitness.items()))) == one
