"""Records as tables of scores, and as curves over gold positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.conditions import Condition, position
from rag_middle.evaluation.items import Item
from rag_middle.evaluation.measurement import LabelledMethod, Measurement
from rag_middle.evaluation.metrics import Metric, metric
from rag_middle.evaluation.records import Key, Record
from rag_middle.evaluation.statistics import CONFIDENCE, RESAMPLES, Estimate, Resampled
from rag_middle.evaluation.tasks import Task

__all__ = ["PositionCurve", "PositionCurves", "Results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurve:
    """A score by the place of the gold document, under one method.

    Attributes:
        label: of the method.
        estimates: mean over questions at each place, with intervals for each place on its own.
        mean: over places.
        worst: at the worst place.
        gap: best minus worst; its interval includes zero where no two places can be told apart.
    """

    label: str
    estimates: tuple[Estimate, ...]
    mean: Estimate
    worst: Estimate
    gap: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.label,
            "by_position": [each.to_dict() for each in self.estimates],
            "mean": self.mean.to_dict(),
            "worst": self.worst.to_dict(),
            "gap": self.gap.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCurves:
    """Curves of several methods over the same questions and places.

    Attributes:
        metric: what was scored.
        places: 0-based places of the gold document.
        documents: in a prompt.
        questions: how many were asked at each place.
        curves: one per method, the unmodified model first.
    """

    metric: Metric
    places: tuple[int, ...]
    documents: int
    questions: int
    curves: tuple[PositionCurve, ...]

    def __getitem__(self, label: str) -> PositionCurve:
        """The curve of one method."""
        return next(curve for curve in self.curves if curve.label == label)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "metric": self.metric.name,
            "places": list(self.places),
            "documents": self.documents,
            "questions": self.questions,
            "confidence": CONFIDENCE,
            "methods": [curve.to_dict() for curve in self.curves],
        }


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
    """

    task: Task
    measurement: Measurement
    methods: tuple[LabelledMethod, ...]
    items: tuple[Item, ...]
    records: Mapping[Key, Record]
    model: Mapping[str, Any]

    @cached_property
    def places(self) -> tuple[int, ...]:
        """0-based places of the gold document; none where the task has no gold document."""
        return self.measurement.places(self.task)

    @property
    def metric(self) -> Metric:
        """The main metric."""
        return metric(self.measurement.metric_names(self.task)[0])

    def scores(
        self, label: str, conditions: Sequence[Condition], name: str | None = None
    ) -> NDArray[np.float64]:
        """`[questions, conditions]` of one method.

        Args:
            label: of the method.
            conditions: the columns.
            name: of a metric; the main one by default.
        """
        chosen = name or self.metric.name
        return np.array(
            [
                [self.records[label, each.name, item.id].scores[chosen] for each in conditions]
                for item in self.items
            ]
        )

    def curves(
        self, name: str | None = None, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> PositionCurves:
        """Curves over gold positions, with bootstrap intervals over questions.

        Args:
            name: of a metric; the main one by default.
            resamples: for the intervals.
            seed: of the resamples.

        Raises:
            EvaluationConfigError: the task has no gold document, so no positions.
        """
        if not self.places:
            raise EvaluationConfigError(
                f"{self.task.name} has no gold document, so there is no curve over its position."
            )
        chosen = metric(name) if name else self.metric
        columns = [position(at) for at in self.places]
        curves = []
        for each in self.methods:
            scores = self.scores(each.label, columns, chosen.name)
            drawn = Resampled(scores, resamples=resamples, seed=seed)
            worst = _least if chosen.higher_is_better else _most
            curves.append(
                PositionCurve(
                    label=each.label,
                    estimates=drawn.estimates(),
                    mean=drawn.estimate(_average),
                    worst=drawn.estimate(worst),
                    gap=drawn.gap(),
                )
            )
        return PositionCurves(
            metric=chosen,
            places=self.places,
            documents=self.task.places,
            questions=len(self.items),
            curves=tuple(curves),
        )


def _average(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(means.mean(axis=-1))


def _least(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(means.min(axis=-1))


def _most(means: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(means.max(axis=-1))
