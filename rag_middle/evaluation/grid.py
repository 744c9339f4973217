"""Scores by row and column: number of documents and position, or what a task varies.

Distance and order of several gold documents, length and position of a chain, gold document present
or absent. Cells have the same questions, so all differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rag_middle.evaluation.conditions import LayoutRow
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import Metric
from rag_middle.evaluation.results import PositionCurve, Results, curve_of
from rag_middle.evaluation.statistics import (
    Array,
    Bootstrap,
    Estimate,
    comparison_confidence,
    paired_difference,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One row of a layout.

    Attributes:
        name: of the row.
        columns: their headings.
        curves: over the columns, by label of the method; the gap is that between columns.
        differences: mean over columns minus the unmodified model's, by label.
        changes: mean over columns minus the first row's under the same method, by label; empty
            for the first row.
        abstained: share of answers that say that the model does not know, by label; empty for
            tasks that do not ask for that.
    """

    name: str
    columns: tuple[str, ...]
    curves: Mapping[str, PositionCurve]
    differences: Mapping[str, Estimate]
    changes: Mapping[str, Estimate]
    abstained: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scores by row and column.

    Attributes:
        metric: what was scored.
        row_title: what differs from row to row.
        column_title: what differs from column to column.
        questions: how many were asked in each cell.
        rows: as in the layout.
        confidence: of each difference and change, so that those of all methods and rows hold
            together (Bonferroni).
    """

    metric: Metric
    row_title: str
    column_title: str
    questions: int
    rows: tuple[GridRow, ...]
    confidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name}


def grid_of(results: Results) -> Grid | None:
    """Rows and columns of a run whose measurement has a grid, or whose task has its own.

    Returns:
        None for other runs.
    """
    layout = results.measurement.layout(results.task)
    if layout is None:
        return None
    labels, first = [method.label for method in results.methods], layout.rows[0]
    compared = (len(labels) - 1) * len(layout.rows) + len(labels) * (len(layout.rows) - 1)
    confidence = comparison_confidence(compared)
    abstain = "abstained" in results.measurement.metric_names(results.task)

    def scores(row: LayoutRow, metric_name: str | None = None) -> dict[str, Array]:
        cells = tuple(row.cells.values())
        return {label: results.scores(label, cells, metric_name) for label in labels}

    def means(scores: Mapping[str, Array]) -> dict[str, Array]:
        return {label: own.mean(axis=1) for label, own in scores.items()}

    def grid_row(row: LayoutRow) -> GridRow:
        own, of_first = means(scores(row)), means(scores(first))
        abstained = means(scores(row, "abstained")) if abstain else {}
        return GridRow(
            name=row.name,
            columns=tuple(row.cells),
            curves={
                label: curve_of(label, Bootstrap(cells)) for label, cells in scores(row).items()
            },
            differences={
                label: paired_difference(own[label], own[BASELINE], confidence)
                for label in labels
                if label != BASELINE
            },
            changes={
                label: paired_difference(own[label], of_first[label], confidence)
                for label in labels
                if row is not first
            },
            abstained={
                label: Bootstrap(shares[:, None]).estimates()[0]
                for label, shares in abstained.items()
            },
        )

    return Grid(
        metric=results.metric,
        row_title=layout.row_title,
        column_title=layout.column_title,
        questions=len(results.items),
        rows=tuple(map(grid_row, layout.rows)),
        confidence=confidence,
    )
