"""Does this model, on this data, lose the middle, and which method helps?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rag_middle.errors import EvaluationConfigError, MethodConfigError, UnsupportedArchitectureError
from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.cost import measure_costs
from rag_middle.evaluation.fitted import fitted_presets
from rag_middle.evaluation.measurement import (
    BASELINE,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.next_steps import next_steps, worth_calibrating
from rag_middle.evaluation.provenance import software
from rag_middle.evaluation.recommendation import Recommendation, recommend
from rag_middle.evaluation.results import PositionCurves
from rag_middle.evaluation.runner import Progress, check_measurable, run
from rag_middle.evaluation.shape import Shape, shape_of
from rag_middle.evaluation.statistics import Resampled
from rag_middle.evaluation.summary import Summary, summarised
from rag_middle.evaluation.tasks import Task
from rag_middle.generation import RagMiddleModel

__all__ = ["UNCALIBRATED", "Diagnosis", "diagnose", "methods_to_try", "require_gold_documents"]

#: Methods that need nothing fitted to the model, in the order in which charts show them.
UNCALIBRATED = ("pine", "ms_poe", "siw", "position_interpolation")

_COST_PROMPTS = 3


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        task: what was asked, as plain data.
        title: of the task.
        provenance: of its data.
        measurement: how, as plain data.
        model: what tells the model from others.
        software: versions and device.
        made: when, ISO 8601, UTC.
        curves: over gold positions.
        summary: means, differences, flips, costs, controls.
        shape: of the unmodified model's curve.
        recommendation: what to use.
        notes: what the controls say, and other things to know.
        next_steps: what to do now.
        left_out: methods that the model cannot take, with the reason.
        answer_tokens: length of answer for which times are compared.
    """

    task: Mapping[str, Any]
    title: str
    provenance: str
    measurement: Mapping[str, Any]
    model: Mapping[str, Any]
    software: Mapping[str, str]
    made: str
    curves: PositionCurves
    summary: Summary
    shape: Shape
    recommendation: Recommendation
    notes: tuple[str, ...]
    next_steps: tuple[str, ...]
    left_out: Mapping[str, str]
    answer_tokens: int

    def answer_ratio(self, label: str) -> float | None:
        """Time of an answer under a method, as a ratio to the unmodified model's."""
        own, base = self.summary[label].cost, self.summary[BASELINE].cost
        return own.answer_ratio(self.answer_tokens, base) if own and base else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "made": self.made,
            "model": dict(self.model),
            "software": dict(self.software),
            "task": {**self.task, "title": self.title, "provenance": self.provenance},
            "measurement": dict(self.measurement),
            "shape": self.shape.to_dict(),
            "recommendation": self.recommendation.to_dict(),
            "notes": list(self.notes),
            "next_steps": list(self.next_steps),
            "curves": self.curves.to_dict(),
            "summary": self.summary.to_dict(),
            "answer_time_ratios": {
                each.label: self.answer_ratio(each.label) for each in self.summary.methods
            },
            "left_out": dict(self.left_out),
        }


def methods_to_try(
    model: RagMiddleModel, names: Sequence[str] = UNCALIBRATED
) -> tuple[list[str], dict[str, str]]:
    """The methods of `names` that this model can take, and why it cannot take the others."""
    able, left_out = [], {}
    for name in names:
        try:
            RagMiddleModel(model.model, model.tokenizer, method=name)
        except (UnsupportedArchitectureError, MethodConfigError) as error:
            left_out[name] = str(error)
        else:
            able.append(name)
    return able, left_out


def require_gold_documents(task: Task) -> None:
    """Raise EvaluationConfigError where a task does not know which document holds the answer."""
    if not task.places:
        raise EvaluationConfigError(
            f"{task.name} does not say which document holds the answer, so positions cannot be "
            "compared. Give data with gold documents, or compare methods as a whole with "
            "`rag-middle evaluate`."
        )


def diagnose(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[MethodSpec] | None = None,
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: Progress | None = None,
    cost: bool = True,
) -> Diagnosis:
    """Measure a model on a task by the place of the gold document, and say what to use.

    Args:
        model: what to look at.
        task: one with gold documents.
        methods: what to try; by default those of `UNCALIBRATED` that the model can take, and what
            `fitted_presets` has for it.
        measurement: how; by default 100 questions, five places, three shuffled orders, controls.
        records: a file to keep answers in, and to continue from.
        progress: told how many answers there are and will be.
        cost: measure times and memory too.

    Raises:
        EvaluationConfigError: the task has no gold documents.
        As `rag_middle.evaluation.run`.
    """
    require_gold_documents(task)
    how = measurement or Measurement(orders=3, controls=True)
    check_measurable(task, methods or (), how)
    left_out: dict[str, str] = {}
    if methods is None:
        able, left_out = methods_to_try(model)
        methods = [*able, *fitted_presets(model)]
    results = run(model, task, methods, how, records=records, progress=progress)
    costs = None
    if cost:
        places = results.places
        middle = position(places[len(places) // 2])
        few = [task.prompt(item, middle) for item in results.items[:_COST_PROMPTS]]
        costs = measure_costs(model, labelled_methods(methods), few, template=how.template)
    summary = summarised(results, costs)
    columns = [position(at) for at in results.places]
    scores = {each.label: results.scores(each.label, columns) for each in results.methods}
    tokens = how.max_new_tokens or task.max_new_tokens
    ratios: dict[str, float | None] = {}
    if costs:
        ratios = {label: c.answer_ratio(tokens, costs[BASELINE]) for label, c in costs.items()}
    metric = results.metric
    shape = shape_of(Resampled(scores[BASELINE]), higher_is_better=metric.higher_is_better)
    recommendation = recommend(scores, metric, ratios)
    calibratable: tuple[str, ...] = ()
    if task.by_likelihood:  # which the searches need
        fitted = [each.method.name for each in results.methods if each.is_fitted]
        calibratable = worth_calibrating(model, fitted)
    return Diagnosis(
        task=task.to_dict(),
        title=task.title,
        provenance=task.provenance,
        measurement=asdict(how),
        model=results.model,
        software=software(model),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        curves=results.curves(),
        summary=summary,
        shape=shape,
        recommendation=recommendation,
        notes=_notes(summary, shape),
        next_steps=next_steps(recommendation, shape, calibratable),
        left_out=left_out,
        answer_tokens=tokens,
    )


def _notes(summary: Summary, shape: Shape) -> tuple[str, ...]:
    notes = []
    controls = {each.name: each for each in summary.controls}
    closed, alone = controls.get("closed_book"), controls.get("gold_only")
    oriented = summary.metric.oriented
    if closed and closed.difference.includes_zero and oriented(closed.mean.value) > 0:
        notes.append(
            "Without any documents the model does as well: it knows these answers, and the "
            "questions do not measure reading."
        )
    if closed and alone and oriented(alone.mean.value) <= oriented(closed.mean.value):
        notes.append(
            "With the answering document alone the model does no better than with none: it does "
            "not use the document wherever it stands. No position method mends that."
        )
    if shape.confidence < 0.8:
        notes.append(
            f"The shape is uncertain: {shape.confidence:.0%} of the resampled curves look so. "
            "More questions make it clearer."
        )
    idle = [each.label for each in summary.methods if each.acted < 1 and each.label != BASELINE]
    if idle:
        notes.append(f"Some prompts left nothing to do for: {', '.join(idle)}.")
    return tuple(notes)
