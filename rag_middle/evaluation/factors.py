"""Scores of a task that varies more than one position: by row and column of its layout.

Distance and order of several gold documents, length and position of a chain, gold document present
or absent. Cells have the same questions, so all differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.evaluation.conditions import Condition
from rag_middle.evaluation.grid import HeatMapRow, HeatMaps
from rag_middle.evaluation.layouts import LayoutRow
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import METRICS, Metric
from rag_middle.evaluation.results import PositionCurve, Results, curve_of
from rag_middle.evaluation.statistics import (
    CONFIDENCE,
    Bootstrap,
    Estimate,
    comparison_confidence,
    paired_difference,
)
from rag_middle.wording import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorRow:
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
class AbstentionShares:
    """What a method answers where the gold document is present, and where it is absent.

    Attributes:
        abstained: share of answers that abstain, gold document absent: all of them should.
        false: share of other answers there: made up, or read in a document about something else.
        abstained_wrongly: share of answers that abstain though the gold document is there.
        false_present: share of wrong answers there that do not abstain.
        difference: `abstained` minus the unmodified model's; None for that model itself.
    """

    abstained: Estimate
    false: Estimate
    abstained_wrongly: Estimate
    false_present: Estimate
    difference: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Scores by row and column.

    Attributes:
        metric: what was scored.
        row_title: what differs from row to row.
        column_title: what differs from column to column.
        questions: how many were asked in each cell.
        rows: as in the layout.
        abstentions: by label of the method, for a task that asks for them; else empty.
        confidence: of each difference and change, so that those of all methods and rows hold
            together (Bonferroni).
    """

    metric: Metric
    row_title: str
    column_title: str
    questions: int
    rows: tuple[FactorRow, ...]
    abstentions: Mapping[str, AbstentionShares]
    confidence: float

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(self.rows[0].curves)

    @property
    def heat_maps(self) -> HeatMaps:
        """For a chart."""
        return HeatMaps(
            metric=self.metric,
            row_title=self.row_title,
            column_title=self.column_title,
            rows=tuple(
                HeatMapRow(
                    row.name,
                    row.columns,
                    {label: curve.estimates for label, curve in row.curves.items()},
                )
                for row in self.rows
            ),
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from it: on columns, on rows, on abstentions, and on each method."""
        first = self.rows[0]
        uneven = [
            row.name
            for row in self.rows
            if len(row.columns) > 1 and not row.curves[BASELINE].gap.includes_zero
        ]
        title = _lower(self.column_title)
        return (
            f"The unmodified model differs significantly by {title}: {listed(uneven)}."
            if uneven
            else f"The unmodified model does not differ significantly by {title}.",
            *(
                f"{row.name[0].upper()}{row.name[1:]}: {self.metric.shown(_mean(row))}; "
                f"{first.name}: {self.metric.shown(_mean(first))}. The difference is "
                f"{'not ' if row.changes[BASELINE].includes_zero else ''}statistically significant."
                for row in self.rows[1:]
                if not self.abstentions
            ),
            *(self._about_abstentions(label) for label in self.abstentions),
            *(self._about(label) for label in self.labels if label != BASELINE),
        )

    def _about(self, label: str) -> str:
        groups: dict[str, list[str]] = {"better": [], "worse": [], "neither": []}
        for row in self.rows:
            difference = row.differences[label]
            if difference.includes_zero:
                groups["neither"].append(row.name)
            else:
                amount = self.metric.amount(abs(difference.value))
                verdict = "better" if difference.value > 0 else "worse"
                groups[verdict].append(f"{row.name} (by {amount})")
        parts = [f"significantly {name}: {listed(groups[name])}"
                 for name in ("better", "worse") if groups[name]]  # fmt: skip
        if groups["neither"]:
            parts.append(f"no significant difference: {listed(groups['neither'])}")
        return f"{label}, on average over columns: {'; '.join(parts)}."

    def _about_abstentions(self, label: str) -> str:
        shares, shown = self.abstentions[label], METRICS["abstained"].shown
        return (
            f"{label}: without the gold document {shown(shares.abstained.value)} abstain and "
            f"{shown(shares.false.value)} answer falsely; with it "
            f"{shown(shares.abstained_wrongly.value)} abstain and "
            f"{shown(shares.false_present.value)} answer falsely."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name, "sentences": list(self.sentences)}


def factors_of(results: Results, *, seed: int = 0) -> Factors | None:
    """Rows and columns of a run whose task has a layout; None for the others.

    Args:
        results: of the run.
        seed: of the resamples.
    """
    layout = results.measurement.layout(results.task)
    if layout is None:
        return None
    labels, rows = [method.label for method in results.methods], layout.rows
    compared = (len(labels) - 1) * len(rows) + len(labels) * (len(rows) - 1)
    confidence = comparison_confidence(compared)

    def difference(own: tuple[str, LayoutRow], other: tuple[str, LayoutRow]) -> Estimate:
        first, second = (
            results.scores(label, row.conditions).mean(axis=1) for label, row in (own, other)
        )
        return paired_difference(first, second, confidence, seed=seed)

    def curve(label: str, row: LayoutRow) -> PositionCurve:
        return curve_of(label, Bootstrap(results.scores(label, row.conditions), seed=seed))

    return Factors(
        metric=results.metric,
        row_title=layout.row_title,
        column_title=layout.column_title,
        questions=len(results.items),
        rows=tuple(
            FactorRow(
                name=row.name,
                columns=row.columns,
                curves={label: curve(label, row) for label in labels},
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
        abstentions=_abstentions(results, confidence, seed)
        if "abstained" in results.measurement.metric_names(results.task)
        else {},
        confidence=confidence,
    )


def _abstentions(results: Results, confidence: float, seed: int) -> dict[str, AbstentionShares]:
    conditions = results.measurement.conditions(results.task)
    present = [c for c in conditions if c.kind == "position"]
    absent = [c for c in conditions if c.kind == "gold_absent"]

    def share(label: str, where: list[Condition], name: str) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = results.scores(label, where, name).mean(axis=1)
        return scores

    def mean(scores: NDArray[np.float64], level: float = CONFIDENCE) -> Estimate:
        return Bootstrap(scores[:, None], seed=seed).estimate(lambda m: m[..., 0], level)

    shares = {}
    for method in results.methods:
        label = method.label
        own, base = (share(name, absent, "abstained") for name in (label, BASELINE))
        wrongly = share(label, present, "abstained")
        shares[label] = AbstentionShares(
            abstained=mean(own),
            false=mean(1 - own),
            abstained_wrongly=mean(wrongly),
            false_present=mean(1 - wrongly - share(label, present, "accuracy")),
            difference=None if label == BASELINE else mean(own - base, confidence),
        )
    return shares


def _mean(row: FactorRow) -> float:
    return row.curves[BASELINE].mean.value


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]
