"""Does this model, on this data, lose the middle, and which method helps?

The steps: `diagnose` measures, `shape_of` names the unmodified model's curve over positions,
`recommend` chooses a method or none by the numbers alone, `next_steps` says what to do now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EvaluationConfigError, MethodConfigError, UnsupportedArchitectureError
from rag_middle.evaluation.conditions import position
from rag_middle.evaluation.cost import measure_costs
from rag_middle.evaluation.measurement import BASELINE, Measurement, MethodSpec
from rag_middle.evaluation.metrics import Metric
from rag_middle.evaluation.results import PositionCurves, Results, Summary
from rag_middle.evaluation.statistics import CONFIDENCE, RESAMPLES, Bootstrap, Estimate
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.trials import (
    ProgressCallback,
    check_measurement,
    check_takes,
    run,
)
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import LPES, SIW, Method, MsPoE, PositionalHiddenStates
from rag_middle.profiles import measured_profiles

__all__ = [
    "MIN_QUESTIONS",
    "SHAPES",
    "UNCALIBRATED",
    "Diagnosis",
    "Recommendation",
    "Shape",
    "Verdict",
    "diagnose",
    "fitted_presets",
    "methods_to_try",
    "next_steps",
    "recommend",
    "require_gold_documents",
    "shape_of",
    "worth_calibrating",
]

Array = NDArray[np.float64]

#: Methods that need nothing fitted to the model, in the order in which charts show them.
UNCALIBRATED = ("pine", "ms_poe", "siw", "position_interpolation")

#: Methods that ``rag-middle calibrate`` has a search for, each with settings that any model of a
#: fitting build takes.
CALIBRATED: Mapping[str, Method] = MappingProxyType(
    {
        "positional_hidden_states": PositionalHiddenStates(channels=(0,), factor=0.5),
        "lpes": LPES(factors=1.5),
        "siw": SIW(),
        "ms_poe": MsPoE(),
    }
)

ShapeName = Literal["U", "primacy", "recency", "flat", "irregular"]

SHAPES: Mapping[ShapeName, str] = MappingProxyType(
    {
        "U": "U-shape: accuracy is higher at both ends than in the middle",
        "primacy": "primacy: accuracy is higher at the first positions than at the last",
        "recency": "recency: accuracy is higher at the last positions than at the first",
        "flat": "flat: no two positions differ significantly",
        "irregular": "irregular: positions differ, but neither end stands out",
    }
)

MIN_QUESTIONS = 20
_COST_PROMPTS = 3
_NOTICEABLE = 0.25  # of the whole range; what differs less counts as level
_MIN_ACCURACY = 0.05  # below it, position is not the problem

Reason = Literal[
    "too_few_questions", "cannot_answer", "no_gap", "nothing_tried", "no_help", "helps"
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a curve looks like.

    Attributes:
        name: ``"flat"`` where its range is within the gap's interval (`Bootstrap.gap`); else with
            ``first``, ``last`` and ``middle`` (the mean of all positions between) and a quarter of
            the range as what is noticeable: ``"U"`` where first and last both lie noticeably above
            the middle; ``"primacy"`` or ``"recency"`` where one end lies noticeably above the
            other; ``"irregular"`` otherwise.
        confidence: share of the resampled curves that get the same name.
    """

    name: ShapeName
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one method helps.

    Attributes:
        label: of the method.
        worst_difference: worst position under the method minus worst position without, paired over
            questions. The interval's level is adjusted for the number of methods tried
            (Bonferroni).
        mean_difference: the same for the mean over positions.
        helps: the worst position gains significantly, and the mean does not fall.
        why: in words.
    """

    label: str
    worst_difference: Estimate
    mean_difference: Estimate
    helps: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to use.

    Attributes:
        label: of the method; ``"none"`` for the model as it is.
        reason: why, for programs.
        text: why, in words.
        verdicts: on every method that was tried.
    """

    label: str
    reason: Reason
    text: str
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was measured, and what follows from it.

    Attributes:
        task: what was asked, as plain data.
        title: of the task.
        provenance: of its data.
        measurement: how, as plain data.
        model: what tells the model from others.
        software: versions and device.
        made: when, ISO 8601, UTC.
        curves: over gold positions.
        summary: means, differences, flip rates, costs, controls.
        answer_time_ratios: time of an answer under a method, as a ratio to the unmodified model's,
            by label; empty where costs were not measured.
        shape: of the unmodified model's curve.
        recommendation: what to use.
        notes: what the controls say, and other things to know.
        next_steps: what to do now.
        left_out: methods that the model cannot take, with the reason.
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
    answer_time_ratios: Mapping[str, float]
    shape: Shape
    recommendation: Recommendation
    notes: tuple[str, ...]
    next_steps: tuple[str, ...]
    left_out: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        nested = {"curves": self.curves.to_dict(), "summary": self.summary.to_dict()}
        return {**asdict(self), **nested}


def diagnose(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[MethodSpec] | None = None,
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: ProgressCallback | None = None,
    cost: bool = True,
) -> Diagnosis:
    """Measure a model on a task by the position of the gold document, and say what to use.

    Args:
        model: to measure.
        task: one with gold documents.
        methods: what to try; by default those of `UNCALIBRATED` that the model can take, and what
            `fitted_presets` has for it.
        measurement: how; by default 100 questions, five positions, three shuffled orders, controls.
        records: a file to keep answers in, and to continue from.
        progress: called with the number of answers so far and the number of all.
        cost: measure times and memory too.

    Raises:
        EvaluationConfigError: the task has no gold documents.
        As `rag_middle.evaluation.run`.
    """
    require_gold_documents(task)
    measurement = measurement or Measurement(orders=3, controls=True)
    check_measurement(task, methods or (), measurement)
    left_out: dict[str, str] = {}
    if methods is None:
        able, left_out = methods_to_try(model)
        methods = [*able, *fitted_presets(model)]
    results = run(model, task, methods, measurement, records=records, progress=progress)
    costs, ratios = None, {}
    if cost:
        middle = position(results.positions[len(results.positions) // 2])
        prompts = [task.prompt(item, middle) for item in results.items[:_COST_PROMPTS]]
        costs = measure_costs(model, results.methods, prompts, template=measurement.template)
        tokens = measurement.max_new_tokens or task.max_new_tokens
        seconds = {label: cost.answer_seconds(tokens) for label, cost in costs.items()}
        ratios = {label: own / seconds[BASELINE] for label, own in seconds.items()}
    summary = results.summary(costs)
    shape = shape_of(Bootstrap(results.scores(BASELINE)))
    recommendation = recommend_from(results, ratios)
    calibratable: tuple[str, ...] = ()
    if task.by_likelihood:  # which the searches need
        # A method with a provenance has settings from a profile already.
        fitted = [m.method.name for m in results.methods if m.method.provenance is not None]
        calibratable = worth_calibrating(model, fitted)
    return Diagnosis(
        task=task.to_dict(),
        title=task.title,
        provenance=task.provenance,
        measurement=asdict(measurement),
        model=results.model,
        software=results.software,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        curves=results.curves(),
        summary=summary,
        answer_time_ratios=ratios,
        shape=shape,
        recommendation=recommendation,
        notes=_notes(summary, shape),
        next_steps=next_steps(recommendation, shape, calibratable),
        left_out=left_out,
    )


def require_gold_documents(task: Task) -> None:
    """Raise EvaluationConfigError where a task does not know which document holds the answer."""
    if not task.num_positions:
        raise EvaluationConfigError(
            f"{task.name} does not say which document holds the answer, so positions cannot be "
            "compared. Give data with gold documents, or compare methods as a whole in Python with "
            "rag_middle.evaluation.run."
        )


# -- which methods to try -------------------------------------------------------------------------


def methods_to_try(
    model: RagMiddleModel, names: Sequence[str] = UNCALIBRATED
) -> tuple[list[str], dict[str, str]]:
    """The methods of `names` that this model can take, and why it cannot take the others."""
    able, left_out = [], {}
    for name in names:
        try:
            check_takes(model, name)
        except (UnsupportedArchitectureError, MethodConfigError) as error:
            left_out[name] = str(error)
        else:
            able.append(name)
    return able, left_out


def fitted_presets(model: RagMiddleModel) -> tuple[str, ...]:
    """Presets that were fitted to these very weights and helped on held-out questions.

    Args:
        model: whose weights they must have been fitted to: after another training they say nothing.

    Returns:
        Names for `resolve_method`, such as ``"lpes:reader"``.
    """
    recommended = {
        f"{method}:{name}": profile.model
        for method in CALIBRATED
        for name, profile in measured_profiles(method).items()
        if profile.recommended and profile.model.weights_sample is not None
    }
    if not recommended:
        return ()
    facts = model_facts(model.model, model.tokenizer, all_weights=False)
    return tuple(
        preset
        for preset, fitted_to in recommended.items()
        if not fitted_to.shape_differences(facts) and not fitted_to.version_differences(facts)
    )


def worth_calibrating(model: RagMiddleModel, fitted: Collection[str] = ()) -> tuple[str, ...]:
    """Methods with a search that this model can take.

    Args:
        model: that they would be fitted to.
        fitted: names of methods that are fitted to it already.
    """
    able = []
    for name, method in CALIBRATED.items():
        try:
            check_takes(model, method)
        except (UnsupportedArchitectureError, MethodConfigError):
            continue
        if name not in fitted:
            able.append(name)
    return tuple(able)


# -- the shape of a curve -------------------------------------------------------------------------


def shape_of(bootstrap: Bootstrap) -> Shape:
    """The shape of the column means, columns being positions from first to last."""
    gap = bootstrap.gap()
    flat_within = gap.value - gap.low
    [name] = shape_names(bootstrap.means[None], flat_within)
    names = shape_names(bootstrap.resampled_means, flat_within)
    return Shape(name, float(np.mean(names == name)))


def shape_names(curves: Array, flat_within: float) -> NDArray[np.str_]:
    """The name of each of the curves `[curves, positions]`.

    Args:
        curves: at least two positions each.
        flat_within: a curve with at most this range is flat.
    """
    first, last = curves[:, 0], curves[:, -1]
    spread = np.ptp(curves, axis=1)
    noticeable = _NOTICEABLE * spread
    inside = curves[:, 1:-1]
    middle = inside.mean(axis=1) if inside.shape[1] else np.full(len(curves), np.inf)
    both_ends = (first - middle >= noticeable) & (last - middle >= noticeable)
    return np.select(
        [
            spread <= flat_within + 1e-12,  # equal up to rounding of the means
            both_ends,
            first - last >= noticeable,
            last - first >= noticeable,
        ],
        ["flat", "U", "primacy", "recency"],
        default="irregular",
    )


# -- the recommendation ---------------------------------------------------------------------------


def recommend_from(
    results: Results, answer_time_ratios: Mapping[str, float] | None = None
) -> Recommendation:
    """`recommend` for the methods of a run."""
    scores = {method.label: results.scores(method.label) for method in results.methods}
    return recommend(scores, results.metric, answer_time_ratios)


def recommend(
    scores: Mapping[str, Array],
    metric: Metric,
    answer_time_ratios: Mapping[str, float] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Recommendation:
    """Choose a method, or none.

    1. With fewer than `MIN_QUESTIONS` questions: none, nothing can be said.
    2. Where hardly anything is answered at any position: none, position is not the problem.
    3. Where the gap's interval of the unmodified model includes zero: none is needed.
    4. A method qualifies if its worst position gains significantly (the paired interval, adjusted
       for the number of methods tried, lies above zero) and its mean over positions is not lower.
    5. Of those, the one with the best worst position; of those as good within `Metric.tolerance`,
       the cheapest.

    Args:
        scores: by label, `[questions, positions]`, the same questions in the same order;
            ``"none"`` among them.
        metric: of the scores.
        answer_time_ratios: to ``none``, by label, where it was measured.
        resamples: for the intervals.
        seed: of the resamples.
    """
    base = np.asarray(scores[BASELINE])
    questions = len(base)
    if questions < MIN_QUESTIONS:
        return _none(
            "too_few_questions",
            f"{questions} questions are too few to compare positions: ask at least "
            f"{MIN_QUESTIONS}, better a hundred or more.",
        )
    tried = [label for label in scores if label != BASELINE]
    level = 1 - (1 - CONFIDENCE) / max(1, len(tried))
    verdicts = []
    for label in tried:
        paired = np.concatenate([base, scores[label]], axis=1)
        bootstrap = Bootstrap(paired, resamples=resamples, seed=seed)
        verdicts.append(_verdict(label, bootstrap, level, metric))
    bootstrap = Bootstrap(base, resamples=resamples, seed=seed)
    gap = bootstrap.gap()
    if metric.share and bootstrap.means.max() < _MIN_ACCURACY:
        return _none(
            "cannot_answer",
            "The model answers hardly any question at any position of the gold document: position "
            "is not the problem. Look at the prompt, the template, the model or the data.",
            verdicts,
        )
    amount = metric.amount(gap.value)
    if gap.includes_zero:
        return _none(
            "no_gap",
            f"No method needed: positions differ by {amount}, which is not statistically "
            f"significant (with these {questions} questions, a difference below "
            f"{metric.amount(gap.value - gap.low)} goes unseen).",
            verdicts,
        )
    if not tried:
        return _none(
            "nothing_tried",
            f"Positions differ by {amount}, which is statistically significant. Try methods.",
        )
    helping = [verdict for verdict in verdicts if verdict.helps]
    if not helping:
        return _none(
            "no_help",
            f"Positions differ by {amount}, but no method that was tried raises the worst position "
            "significantly without lowering the mean.",
            verdicts,
        )
    worst = {verdict.label: float(scores[verdict.label].mean(axis=0).min()) for verdict in helping}
    # A hair more than the tolerance: values exactly that far apart tie whatever the rounding.
    least = max(worst.values()) - metric.tolerance * (1 + 1e-9)
    tied = [verdict for verdict in helping if worst[verdict.label] >= least]
    ratios = answer_time_ratios or {}
    best = min(tied, key=lambda v: (ratios.get(v.label, float("inf")), -worst[v.label]))
    text = f"Use {best.label}: {best.why}."
    if best.label in ratios:
        text += f" An answer takes {ratios[best.label]:.2g} times as long."
    rivals = [verdict.label for verdict in tied if verdict is not best]
    if rivals:
        text += f" As good, and not cheaper: {', '.join(rivals)}."
    return Recommendation(label=best.label, reason="helps", text=text, verdicts=tuple(verdicts))


def _verdict(label: str, bootstrap: Bootstrap, level: float, metric: Metric) -> Verdict:
    """Args: `bootstrap` has the unmodified model's positions, then the method's."""
    count = len(bootstrap.means) // 2
    worst = bootstrap.estimate(
        lambda means: np.min(means[..., count:], -1) - np.min(means[..., :count], -1), level
    )
    mean = bootstrap.estimate(
        lambda means: np.mean(means[..., count:], -1) - np.mean(means[..., :count], -1), level
    )
    # Sums of the same scores in another order differ by rounding.
    lowers_mean = mean.value < -1e-9
    gain = metric.amount(worst.value)
    if worst.high < 0:
        why = f"the worst position loses {metric.amount(-worst.value)}"
    elif worst.low <= 0:
        why = "no significant gain at the worst position"
    elif lowers_mean:
        why = f"the worst position gains {gain}, but the mean falls by {metric.amount(-mean.value)}"
    else:
        why = f"the worst position gains {gain}, the mean {metric.amount(mean.value)}"
    return Verdict(
        label=label,
        worst_difference=worst,
        mean_difference=mean,
        helps=worst.low > 0 and not lowers_mean,
        why=why,
    )


def _none(reason: Reason, text: str, verdicts: Sequence[Verdict] = ()) -> Recommendation:
    return Recommendation(label=BASELINE, reason=reason, text=text, verdicts=tuple(verdicts))


# -- what to do now -------------------------------------------------------------------------------


def next_steps(
    recommendation: Recommendation, shape: Shape, calibratable: Sequence[str]
) -> tuple[str, ...]:
    """What to do now, in sentences.

    Args:
        recommendation: of the diagnosis.
        shape: of the unmodified model's curve.
        calibratable: methods to name `rag-middle calibrate` for; see `worth_calibrating`.
    """
    reason = recommendation.reason
    if reason == "too_few_questions":
        return ("Run again with a larger --limit.",)
    if reason == "cannot_answer":
        return (
            "Look at a few answers in records.jsonl: does the prompt suit the model? Try "
            "--template, or --score-by likelihood, which shows differences in wrong answers too.",
        )
    if reason == "no_gap":
        return ("Use the model as it is. Measure again when model, prompt or data change.",)
    steps = []
    if reason == "helps":
        label = recommendation.label
        steps.append(f"Check {label} on held-out questions before relying on it.")
    best_order = {
        "primacy": "Put the best documents first: it costs nothing.",
        "recency": "Put the best documents last: it costs nothing.",
        "U": "Put the best documents at both ends, the worst in the middle: it costs nothing.",
    }
    if shape.name in best_order:
        steps.append(best_order[shape.name])
    if reason == "nothing_tried":
        steps.append("Name methods to try with --methods.")
    if calibratable:
        first, *others = calibratable
        alternatives = f" (or {', '.join(others)})" if others else ""
        steps.append(
            "Settings fitted to this model may do better. `rag-middle calibrate --method "
            f"{first}`{alternatives} with the same --model and --data searches for them and checks "
            "them on held-out questions; then run this again with "
            f"`--methods profile:rag-middle-calibration/{first}.json`."
        )
    return tuple(steps)


def _notes(summary: Summary, shape: Shape) -> tuple[str, ...]:
    """What the controls say, and what else is to be known."""
    notes = []
    controls = {control.name: control for control in summary.controls}
    closed_book, gold_only = controls.get("closed_book"), controls.get("gold_only")
    if closed_book and closed_book.difference.includes_zero and closed_book.mean.value > 0:
        notes.append(
            "Without any documents the model does as well: it knows these answers, and the "
            "questions do not measure reading."
        )
    if closed_book and gold_only and gold_only.mean.value <= closed_book.mean.value:
        notes.append(
            "With the gold document alone the model does no better than with none: it does not use "
            "the document at any position. No position method mends that."
        )
    if shape.confidence < 0.8:
        notes.append(
            f"The shape is uncertain: {shape.confidence:.0%} of the resampled curves have it. "
            "More questions make it clearer."
        )
    idle = [m.label for m in summary.methods if m.applied < 1 and m.label != BASELINE]
    if idle:
        notes.append(f"Some prompts left nothing to do for: {', '.join(idle)}.")
    return tuple(notes)
