"""What a run says about each method: means, differences, flips, controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_middle.evaluation.conditions import order, position
from rag_middle.evaluation.cost import Cost
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import Metric, normalized
from rag_middle.evaluation.results import PositionCurve, Results
from rag_middle.evaluation.statistics import RESAMPLES, Estimate, Resampled, flip_rate

__all__ = ["Control", "MethodSummary", "Summary", "summarised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """One method on one task.

    Attributes:
        label: of the method.
        method: with its parameters, as Python.
        mean: of the main metric over questions and conditions.
        difference: mean minus that of the unmodified model, paired; None for that model itself.
        curve: over gold positions, where there are any.
        flip_rate: chance that an answer changes when the documents are shuffled again, or where no
            shuffled orders were run, when the gold document moves to another place; None where
            there is neither.
        acted: share of prompts that the method could act on.
        cost: where it was measured.
    """

    label: str
    method: str
    mean: Estimate
    difference: Estimate | None
    curve: PositionCurve | None
    flip_rate: Estimate | None
    acted: float
    cost: Cost | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.label,
            "method": self.method,
            "mean": self.mean.to_dict(),
            "difference_to_none": None if self.difference is None else self.difference.to_dict(),
            "curve": None if self.curve is None else self.curve.to_dict(),
            "flip_rate": None if self.flip_rate is None else self.flip_rate.to_dict(),
            "acted": self.acted,
            "cost": None if self.cost is None else self.cost.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The unmodified model with other documents.

    Attributes:
        name: ``"gold_only"`` or ``"closed_book"``.
        mean: of the main metric.
        difference: minus the unmodified model's mean over the conditions, paired.
    """

    name: str
    mean: Estimate
    difference: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "mean": self.mean.to_dict(),
            "difference_to_none": self.difference.to_dict(),
        }


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
        return next(each for each in self.methods if each.label == label)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "metric": self.metric.name,
            "questions": self.questions,
            "methods": [each.to_dict() for each in self.methods],
            "controls": [each.to_dict() for each in self.controls],
        }


def summarised(
    results: Results,
    costs: dict[str, Cost] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Summary:
    """Every method of a run next to the unmodified model.

    Args:
        results: of `rag_middle.evaluation.run`.
        costs: by label, from `measure_costs`.
        resamples: for the intervals.
        seed: of the resamples.
    """
    curves = results.curves(resamples=resamples, seed=seed) if results.places else None
    main = [c for c in results.measurement.conditions(results.task) if c.kind != "order"]
    # Where only orders were run (a task without gold documents may have nothing else).
    columns = main or list(results.measurement.conditions(results.task))
    base = results.scores(BASELINE, columns).mean(axis=1)

    def difference(own: np.ndarray[Any, Any]) -> tuple[Estimate, Estimate]:
        drawn = Resampled(np.stack([own, base], axis=1), resamples=resamples, seed=seed)
        return drawn.estimates()[0], drawn.estimate(lambda m: np.asarray(m[..., 0] - m[..., 1]))

    methods = []
    for each in results.methods:
        mean, apart = difference(results.scores(each.label, columns).mean(axis=1))
        own = [record for key, record in results.records.items() if key[0] == each.label]
        methods.append(
            MethodSummary(
                label=each.label,
                method=repr(each.method),
                mean=mean,
                difference=None if each.label == BASELINE else apart,
                curve=curves[each.label] if curves else None,
                flip_rate=_flips(results, each.label, resamples, seed),
                acted=sum(record.applied for record in own) / len(own),
                cost=(costs or {}).get(each.label),
            )
        )
    controls = []
    for condition in results.measurement.control_conditions(results.task):
        mean, apart = difference(results.scores(BASELINE, [condition])[:, 0])
        controls.append(Control(name=condition.name, mean=mean, difference=apart))
    return Summary(
        metric=results.metric,
        questions=len(results.items),
        methods=tuple(methods),
        controls=tuple(controls),
    )


def _flips(results: Results, label: str, resamples: int, seed: int) -> Estimate | None:
    shuffled = [order(index) for index in range(results.measurement.orders)]
    if not shuffled:
        shuffled = [position(at) for at in results.places]  # these are orders of documents, too
    if not shuffled:
        return None
    rates = []
    for item in results.items:
        records = [results.records[label, each.name, item.id] for each in shuffled]
        # Without a text, only whether the right answer is the greedy one can be compared.
        rates.append(
            flip_rate(
                [
                    normalized(r.answer) if r.answer is not None else r.scores["greedy_match"]
                    for r in records
                ]
            )
        )
    return Resampled(np.array(rates)[:, None], resamples=resamples, seed=seed).estimates()[0]
