"""Scores by gold position and number of documents: does length hurt, where, and what helps then?

The same questions with fewer documents: the gold document and the first of the others. So cells
differ by length and position alone, and all differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import Metric
from rag_middle.evaluation.results import PositionCurves, Results
from rag_middle.evaluation.statistics import Estimate, comparison_confidence, paired_difference
from rag_middle.wording import listed

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeatMapRow:
    """A row of each heat map.

    Attributes:
        name: at its left.
        columns: what stands below the value of each of its cells.
        estimates: of its cells, by label of the method.
    """

    name: str
    columns: tuple[str, ...]
    estimates: Mapping[str, Sequence[Estimate]]


@dataclass(frozen=True, slots=True)
class HeatMaps:
    """A heat map per method, for a chart.

    Attributes:
        metric: what was scored.
        row_title: of the vertical axis.
        column_title: of the horizontal axis.
        rows: each may have columns of its own; they are spread over the width of all.
    """

    metric: Metric
    row_title: str
    column_title: str
    rows: tuple[HeatMapRow, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(self.rows[0].estimates)

    @property
    def colour_scale(self) -> tuple[float, float, float]:
        """The lowest value, the one above which cells are dark, and the highest; shares in %."""
        values = [e.value for row in self.rows for cells in row.estimates.values() for e in cells]
        low, high = (0.0, 100.0) if self.metric.share else (min(values), max(values))
        return low, low + 0.55 * (high - low), high


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One number of documents.

    Attributes:
        curves: over the positions of the gold document among so many.
        differences: mean over positions minus the unmodified model's, by label, with `Grid`'s
            correction.
    """

    curves: PositionCurves
    differences: Mapping[str, Estimate]

    @property
    def documents(self) -> int:
        """In a prompt."""
        return self.curves.documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Scores by number of documents and position.

    Attributes:
        rows: the fewest documents first.
        length_effect: the unmodified model's mean with most documents minus that with fewest.
        confidence: of each difference, so that those of all methods and rows hold together
            (Bonferroni).
    """

    rows: tuple[GridRow, ...]
    length_effect: Estimate
    confidence: float

    @property
    def metric(self) -> Metric:
        """What was scored."""
        return self.rows[0].curves.metric

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return self.rows[0].curves.labels

    @property
    def heat_maps(self) -> HeatMaps:
        """For a chart."""
        return HeatMaps(
            metric=self.metric,
            row_title="Documents",
            column_title="Position of the gold document, first to last",
            rows=tuple(
                HeatMapRow(
                    str(row.documents),
                    tuple(f"at {position}" for position in row.curves.positions),
                    {curve.label: curve.estimates for curve in row.curves.curves},
                )
                for row in self.rows
            ),
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from it: about length, about positions, and one on each method."""
        first, last = (self.rows[index].curves[BASELINE].mean.value for index in (0, -1))
        fewest, most = self.rows[0].documents, self.rows[-1].documents
        significant = "not " if self.length_effect.includes_zero else ""
        uneven = [row.documents for row in self.rows if not row.curves[BASELINE].gap.includes_zero]
        return (
            f"From {fewest} to {most} documents the unmodified model goes from "
            f"{self.metric.shown(first)} to {self.metric.shown(last)}, which is {significant}"
            "statistically significant.",
            f"Its positions differ significantly with {listed(uneven)} documents."
            if uneven
            else "With none of these numbers of documents do its positions differ significantly.",
            *(self._about(label) for label in self.labels if label != BASELINE),
        )

    def _about(self, label: str) -> str:
        groups: dict[str, list[str]] = {"better": [], "worse": [], "neither": []}
        for row in self.rows:
            difference = row.differences[label]
            amount = self.metric.amount(abs(difference.value))
            if difference.includes_zero:
                groups["neither"].append(f"{row.documents}")
            else:
                verdict = "better" if difference.value > 0 else "worse"
                groups[verdict].append(f"{row.documents} documents (by {amount})")
        parts = [
            f"significantly {verdict} with {listed(groups[verdict])}"
            for verdict in ("better", "worse")
            if groups[verdict]
        ]
        if groups["neither"]:
            parts.append(f"no significant difference with {listed(groups['neither'])} documents")
        return f"{label}, on average over positions: {'; '.join(parts)}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [{**asdict(row), "curves": row.curves.to_dict()} for row in self.rows]
        return {**asdict(self), "rows": rows, "sentences": list(self.sentences)}


def grid_of(results: Results, *, seed: int = 0) -> Grid | None:
    """The grid of a run whose measurement has one; None for the others.

    Args:
        results: of the run.
        seed: of the resamples.
    """
    sizes = results.measurement.grid
    if not sizes:
        return None
    confidence = comparison_confidence(results.compared * (len(sizes) + 1))

    def means(label: str, documents: int | None) -> Scores:
        """Over positions, `[questions]`."""
        positions = results.measurement.gold_positions(results.task, documents)
        conditions = [position(index, documents) for index in positions]
        scores: Scores = results.scores(label, conditions).mean(axis=1)
        return scores

    rows = tuple(
        GridRow(
            curves=results.curves(documents=documents, seed=seed),
            differences={
                label: paired_difference(
                    means(label, documents), means(BASELINE, documents), confidence, seed=seed
                )
                for label in (method.label for method in results.methods)
                if label != BASELINE
            },
        )
        for documents in (*sizes, None)
    )
    most, fewest = means(BASELINE, None), means(BASELINE, sizes[0])
    length = paired_difference(most, fewest, seed=seed)
    return Grid(rows=rows, length_effect=length, confidence=confidence)
