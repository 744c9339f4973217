"""The answers of a run: scores as arrays, and what reports show of them.

Curves over gold positions (`curve_of`), means of methods and controls (`Results.summary`), and rows
and columns (`grid_of`): number of documents and position, or what a task varies. Their intervals
are those of `statistics`; all scores are of the same questions, so all differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import Condition, Item, order, position
from rag_middle.evaluation.measurement import BASELINE, LabelledMethod, Measurement
from rag_middle.evaluation.metrics import Metric, as_compared, metric
from rag_middle.evaluation.records import Key, Record
from rag_middle.evaluation.statistics import (
    Array,
    Bootstrap,
    Consistency,
    Estimate,
    comparison_confidence,
    consistency,
    paired_difference,
)
from rag_middle.evaluation.tasks import Task

_CONTROLS = {
    "gold_only": "the gold document alone",
    "closed_book": "no documents",
    "random_filler": "the other documents' words shuffled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurve:
    """A score by the position of the gold document, under one method.

    Attributes:
        label: of the method.
        estimates: mean over questions at each position, with 95 % intervals for each alone.
        mean: over positions.
        worst: at the worst position.
        gap: best minus worst; its interval includes zero where no two positions differ
            significantly.
    """

    label: str
    estimates: tuple[Estimate, ...]
    mean: Estimate
    worst: Estimate
    gap: Estimate


def curve_of(label: str, bootstrap: Bootstrap) -> PositionCurve:
    """The curve of a method from its scores, a column per position."""
    return PositionCurve(
        label=label,
        estimates=bootstrap.estimates(),
        mean=bootstrap.estimate(lambda means: np.mean(means, axis=-1)),
        worst=bootstrap.least(),
        gap=bootstrap.gap(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurves:
    """Curves of several methods over the same questions and positions.

    Attributes:
        metric: what was scored.
        positions: 0-based, of the gold document.
        documents: in a prompt.
        questions: how many were asked at each position.
        curves: one per method, the unmodified model first.
    """

    metric: Metric
    positions: tuple[int, ...]
    documents: int
    questions: int
    curves: tuple[PositionCurve, ...]

    def __getitem__(self, label: str) -> PositionCurve:
        """The curve of one method."""
        return next(curve for curve in self.curves if curve.label == label)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the methods, the unmodified model first."""
        return tuple(curve.label for curve in self.curves)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """One method on one task.

    Attributes:
        label: of the method.
        method: with its parameters, as Python.
        mean: of the main metric over questions and conditions.
        difference: mean minus that of the unmodified model, paired, with the confidence of
            `comparison_confidence`; None for that model itself.
        consistency: of answers over shuffled orders, or where none were run, over the positions of
            the gold document; None where there is neither.
        applied: share of prompts that the method could act on.
        order_free: the order of documents cannot change its answers, by how it is built
            (`Method.order_free`), so not only in the orders that were asked.
    """

    label: str
    method: str
    mean: Estimate
    difference: Estimate | None
    consistency: Consistency | None
    applied: float
    order_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The unmodified model with other documents.

    Attributes:
        name: of the condition, or of the change.
        mean: of the main metric.
        difference: minus the unmodified model's mean over the conditions, paired, with the
            confidence of `comparison_confidence`.
    """

    name: str
    mean: Estimate
    difference: Estimate

    @property
    def title(self) -> str:
        """What the model was asked with, for people."""
        return _CONTROLS.get(self.name, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All methods on one task.

    Attributes:
        metric: the main one.
        questions: how many were asked.
        methods: the unmodified model first.
        controls: those that were run.
    """

    metric: Metric
    questions: int
    methods: tuple[MethodSummary, ...]
    controls: tuple[Control, ...]

    def __getitem__(self, label: str) -> MethodSummary:
        """The summary of one method."""
        return next(method for method in self.methods if method.label == label)

    def control(self, name: str) -> Control | None:
        """The control of that name, if it was run."""
        return next((control for control in self.controls if control.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "metric": self.metric.name}


@dataclass(frozen=True, kw_only=True)
class Results:
    """All answers of a run.

    Attributes:
        task: what was asked.
        measurement: how.
        methods: under which methods, the unmodified model first.
        items: the questions, in order.
        records: the answers by method label, condition name and item id; none is missing.
        model: what tells the model from others.
        software: versions and device.
    """

    task: Task
    measurement: Measurement
    methods: tuple[LabelledMethod, ...]
    items: tuple[Item, ...]
    records: Mapping[Key, Record]
    model: Mapping[str, Any]
    software: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """What was measured, as plain data for JSON, without the answers."""
        return {
            "task": self.task.to_dict(),
            "title": self.task.title,
            "provenance": self.task.provenance,
            "measurement": asdict(self.measurement),
            "model": self.model,
            "software": self.software,
        }

    @property
    def compared(self) -> int:
        """How many methods were compared with the unmodified model."""
        return len(self.methods) - 1

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """0-based positions of the gold document; none where the task has no gold document."""
        return self.measurement.gold_positions(self.task)

    @property
    def metric(self) -> Metric:
        """The main metric."""
        return metric(self.measurement.metric_names(self.task)[0])

    def scores(
        self,
        label: str,
        conditions: Sequence[Condition] | None = None,
        metric_name: str | None = None,
    ) -> NDArray[np.float64]:
        """Scores of one method, `[questions, conditions]`.

        Args:
            conditions: the columns; by default the gold positions.
            metric_name: the main metric by default.
        """
        if conditions is None:
            conditions = [position(index) for index in self.positions]
        name = metric_name or self.metric.name
        return np.array(
            [
                [self.records[label, c.name, item.id].scores[name] for c in conditions]
                for item in self.items
            ]
        )

    def curves(self, metric_name: str | None = None) -> PositionCurves:
        """Curves of the main metric, or another, over gold positions, with bootstrap intervals.

        Raises:
            ConfigError: the task has no gold document, so no positions.
        """
        if not self.positions:
            raise ConfigError(
                f"{self.task.name} has no gold document, so there is no curve over its position."
            )
        scored = metric(metric_name) if metric_name else self.metric
        scores = {m.label: self.scores(m.label, metric_name=scored.name) for m in self.methods}
        return PositionCurves(
            metric=scored,
            positions=self.positions,
            documents=self.task.num_positions,
            questions=len(self.items),
            curves=tuple(curve_of(label, Bootstrap(own)) for label, own in scores.items()),
        )

    def summary(self) -> Summary:
        """Means, differences from the unmodified model, flips, and controls."""
        conditions = self.measurement.conditions(self.task)
        # Shuffled orders count only where nothing else was run.
        columns = [c for c in conditions if c.kind != "order"] or list(conditions)
        base = self.scores(BASELINE, columns).mean(axis=1)
        confidence = comparison_confidence(self.compared)

        def mean_and_difference(label: str, columns: Sequence[Condition]) -> tuple[Estimate, ...]:
            own = self.scores(label, columns).mean(axis=1)
            [mean] = Bootstrap(own[:, None]).estimates()
            return mean, paired_difference(own, base, confidence)

        methods = []
        for method in self.methods:
            mean, difference = mean_and_difference(method.label, columns)
            applied = [r.applied for r in self.records.values() if r.method == method.label]
            methods.append(
                MethodSummary(
                    label=method.label,
                    method=repr(method.method),
                    mean=mean,
                    difference=None if method.label == BASELINE else difference,
                    consistency=self._consistency(method.label),
                    applied=sum(applied) / len(applied),
                    order_free=method.method.order_free,
                )
            )
        asked = {c.name: [c] for c in (self.task.controls if self.measurement.controls else ())}
        for change in self.measurement.changes:
            asked[change] = [position(index, change=change) for index in self.positions]
        controls = []
        for name, of_control in asked.items():
            mean, difference = mean_and_difference(BASELINE, of_control)
            controls.append(Control(name=name, mean=mean, difference=difference))
        return Summary(
            metric=self.metric,
            questions=len(self.items),
            methods=tuple(methods),
            controls=tuple(controls),
        )

    def _consistency(self, label: str) -> Consistency | None:
        """None where documents came in one order only."""
        orders = [order(index) for index in range(self.measurement.orders)]
        # Positions of the gold document are orders of the documents, too.
        orders = orders or [position(index) for index in self.positions]

        def said(item: Item, condition: Condition) -> object:
            record = self.records[label, condition.name, item.id]
            # Without a text, only whether the right answer is the greedy one can be compared.
            if record.said is None:
                return record.scores["greedy_match"]
            return as_compared(record.said)

        if len(orders) < 2:
            return None
        return consistency([[said(item, condition) for condition in orders] for item in self.items])


# -- rows and columns -----------------------------------------------------------------------------


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
    labels, first = [method.label for method in results.methods], next(iter(layout.rows))
    compared = (len(labels) - 1) * len(layout.rows) + len(labels) * (len(layout.rows) - 1)
    confidence = comparison_confidence(compared)
    abstain = "abstained" in results.measurement.metric_names(results.task)

    def scores(row: str, metric_name: str | None = None) -> dict[str, Array]:
        cells = tuple(layout.rows[row].values())
        return {label: results.scores(label, cells, metric_name) for label in labels}

    def means(row: str, metric_name: str | None = None) -> dict[str, Array]:
        return {label: own.mean(axis=1) for label, own in scores(row, metric_name).items()}

    def grid_row(row: str) -> GridRow:
        own, of_first = means(row), means(first)
        abstained = means(row, "abstained") if abstain else {}
        return GridRow(
            name=row,
            columns=tuple(layout.rows[row]),
            curves={label: curve_of(label, Bootstrap(each)) for label, each in scores(row).items()},
            differences={
                label: paired_difference(own[label], own[BASELINE], confidence)
                for label in labels
                if label != BASELINE
            },
            changes={
                label: paired_difference(own[label], of_first[label], confidence)
                for label in labels
                if row != first
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
