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
from rag_middle.wording import listed


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
    """

    name: str
    columns: tuple[str, ...]
    curves: Mapping[str, PositionCurve]
    differences: Mapping[str, Estimate]
    changes: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scores by row and column.

    Attributes:
        metric: what was scored.
        row_title: what differs from row to row.
        column_title: what differs from column to column.
        questions: how many were asked in each cell.
        rows: as in the layout.
        abstentions: by label of the method, for a task that asks for them; else empty. Shares of
            answers that abstain, and of false ones: ``absent_abstained``, ``absent_false``,
            ``present_abstained`` and ``present_false``, by whether the gold document was there.
        confidence: of each difference and change, so that those of all methods and rows hold
            together (Bonferroni).
    """

    metric: Metric
    row_title: str
    column_title: str
    questions: int
    rows: tuple[GridRow, ...]
    abstentions: Mapping[str, Mapping[str, Estimate]]
    confidence: float

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(self.rows[0].curves)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from it: on columns, on rows, on abstentions, and on each method."""
        first, title = self.rows[0], self.column_title.lower()
        means = [self.metric.shown(row.curves[BASELINE].mean.value) for row in self.rows]
        uneven = [
            row.name
            for row in self.rows
            if len(row.columns) > 1 and not row.curves[BASELINE].gap.includes_zero
        ]
        return (
            f"The unmodified model differs significantly by {title}: {listed(uneven)}."
            if uneven
            else f"The unmodified model does not differ significantly by {title}.",
            *(
                f"{row.name[0].upper()}{row.name[1:]}: {mean}; {first.name}: {means[0]}. "
                "The difference is "
                f"{'not ' if row.changes[BASELINE].includes_zero else ''}statistically significant."
                for row, mean in zip(self.rows[1:], means[1:], strict=True)
                if not self.abstentions
            ),
            *(_about_abstentions(label, shares) for label, shares in self.abstentions.items()),
            *(self._about(label) for label in self.labels if label != BASELINE),
        )

    def _about(self, label: str) -> str:
        groups: dict[str, list[str]] = {
            "significantly better": [],
            "significantly worse": [],
            "no significant difference": [],
        }
        for row in self.rows:
            difference = row.differences[label]
            if difference.includes_zero:
                groups["no significant difference"].append(row.name)
            else:
                verdict = "better" if difference.value > 0 else "worse"
                amount = self.metric.amount(abs(difference.value))
                groups[f"significantly {verdict}"].append(f"{row.name} (by {amount})")
        parts = [f"{verdict}: {listed(names)}" for verdict, names in groups.items() if names]
        return f"{label}, on average over columns: {'; '.join(parts)}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name, "sentences": list(self.sentences)}


def grid_of(results: Results) -> Grid | None:
    """Rows and columns of a run whose measurement has a grid, or whose task has its own.

    Returns:
        None for other runs.
    """
    layout = results.measurement.layout(results.task)
    if layout is None:
        return None
    labels, rows = [method.label for method in results.methods], layout.rows
    compared = (len(labels) - 1) * len(rows) + len(labels) * (len(rows) - 1)
    confidence = comparison_confidence(compared)

    def scores(label: str, row: LayoutRow, metric_name: str | None = None) -> Array:
        return results.scores(label, tuple(row.cells.values()), metric_name)

    def difference(own: tuple[str, LayoutRow], other: tuple[str, LayoutRow]) -> Estimate:
        first, second = (scores(*cells).mean(axis=1) for cells in (own, other))
        return paired_difference(first, second, confidence)

    def share(values: Array) -> Estimate:
        return Bootstrap(values[:, None]).estimates()[0]

    def abstentions(label: str) -> dict[str, Estimate]:
        present, absent = (scores(label, row, "abstained").mean(axis=1) for row in rows)
        right = scores(label, rows[0], "accuracy").mean(axis=1)
        return {
            "absent_abstained": share(absent),
            "absent_false": share(1 - absent),
            "present_abstained": share(present),
            "present_false": share(1 - present - right),
        }

    abstain = "abstained" in results.measurement.metric_names(results.task)
    return Grid(
        metric=results.metric,
        row_title=layout.row_title,
        column_title=layout.column_title,
        questions=len(results.items),
        rows=tuple(
            GridRow(
                name=row.name,
                columns=tuple(row.cells),
                curves={label: curve_of(label, Bootstrap(scores(label, row))) for label in labels},
                differences={
                    label: difference((label, row), (BASELINE, row))
                    for label in labels
                    if label != BASELINE
                },
                changes={
                    label: difference((label, row), (label, rows[0]))
                    for label in labels
                    if row is not rows[0]
                },
            )
            for row in rows
        ),
        abstentions={label: abstentions(label) for label in labels} if abstain else {},
        confidence=confidence,
    )


def _about_abstentions(label: str, shares: Mapping[str, Estimate]) -> str:
    shown = {name: f"{share.text(share=True)} %" for name, share in shares.items()}
    return (
        f"{label}: without the gold document {shown['absent_abstained']} abstain and "
        f"{shown['absent_false']} answer falsely; with it {shown['present_abstained']} abstain "
        f"and {shown['present_false']} answer falsely."
    )
