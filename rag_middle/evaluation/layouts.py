"""Conditions in rows and columns: what is measured where one position says too little.

A task with several gold documents varies their distance and order, a chain of keys its length and
position, a task that asks for abstention whether the gold document is there at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import Condition, chain, spread_positions


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """Conditions that differ in one thing.

    Attributes:
        name: what they have in common, such as ``"reversed"``.
        columns: a heading for each.
        conditions: one per column.
    """

    name: str
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """All conditions of a task.

    Attributes:
        row_title: what differs from row to row.
        column_title: what differs from column to column.
        rows: the first one is what the others are compared with; they may have columns of their
            own.
    """

    row_title: str
    column_title: str
    rows: tuple[LayoutRow, ...]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Of all rows."""
        return tuple(condition for row in self.rows for condition in row.conditions)


def gold_distances(documents: int, golds: int, count: int) -> tuple[int, ...]:
    """`count` distances between neighbouring gold documents, from 1 to the most there is room for.

    Args:
        golds: how many of them are gold, at least two.
        count: how many distances, at least two; fewer where there are not so many.

    Raises:
        ConfigError: there is room for one distance only.
    """
    most = (documents - 1) // (golds - 1)
    if most < 2:
        raise ConfigError(
            f"Distances between {golds} gold documents among {documents} cannot be compared: there "
            f"is room for one only. Use {2 * golds - 1} documents or more."
        )
    return tuple(index + 1 for index in spread_positions(most, count))


def distance_row(
    name: str,
    documents: int,
    distances: Sequence[int],
    order: Sequence[int],
    hops: int | None = None,
) -> LayoutRow:
    """Gold documents further and further apart, always around the middle of the prompt.

    Around the middle, the mean of their positions is the same at every distance: what differs is
    how far apart they are, and at the largest distance that the outer ones stand at the ends.

    Args:
        distances: between neighbours.
        order: the step of the chain at each of the gold positions, first to last.
        hops: as in `chain`.
    """
    golds = len(order)
    conditions = []
    for distance in distances:
        start = (documents - 1 - (golds - 1) * distance) // 2
        positions = [0] * golds
        for slot, step in enumerate(order):
            positions[step] = start + slot * distance
        conditions.append(chain(positions, hops))
    return LayoutRow(
        name, tuple(f"distance {distance}" for distance in distances), tuple(conditions)
    )


def run_row(name: str, documents: int, golds: int, count: int, hops: int) -> LayoutRow:
    """Gold documents next to each other, at `count` positions spread evenly.

    Args:
        golds: how many of them are gold.
        count: how many positions of the first of them.
        hops: how many of the last steps are asked for.
    """
    starts = spread_positions(documents - golds + 1, count)
    return LayoutRow(
        name,
        tuple(f"from {start}" for start in starts),
        tuple(chain(range(start, start + golds), hops) for start in starts),
    )
