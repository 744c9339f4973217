"""Does this model, on this data, lose the middle, and which method helps?

`diagnose` measures (`runner`); the rules of `conclusions` say what follows from the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from rag_middle.documents import ContextPrompt
from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.evaluation.conclusions import (
    MiddleAnswer,
    Recommendation,
    loses_middle,
    method_in_use,
    next_steps,
    notes,
    notes_on_gold,
    order_advice,
    recommend,
)
from rag_middle.evaluation.measurement import (
    BASELINE,
    LabelledMethod,
    Measurement,
    MethodSpec,
    labelled_methods,
)
from rag_middle.evaluation.results import (
    Findings,
    PositionCurve,
    PositionCurves,
    Results,
    findings,
    question_digests,
)
from rag_middle.evaluation.runner import check_measurement, check_takes, run
from rag_middle.evaluation.statistics import Bootstrap, Shape, shape_of
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.tasks.base import require_gold_documents
from rag_middle.generation import RagMiddleModel, TextGenerator, model_facts
from rag_middle.methods import (
    LPES,
    SIW,
    DySCO,
    MeasuredOrder,
    Method,
    MsPoE,
    PositionalHiddenStates,
    SelfExtend,
    ZeroTuning,
)
from rag_middle.methods.resolve import options_in_words
from rag_middle.profiles import ModelFacts, Profile, measured_profiles

#: Methods that need nothing fitted to the model, in the order in which charts show them.
UNCALIBRATED = ("pine", "rotor")

#: Methods that ``rag-middle calibrate`` has a search for, each with settings that any model of a
#: fitting build takes.
CALIBRATED: Mapping[str, Method] = {
    "positional_hidden_states": PositionalHiddenStates(channels=(0,), factor=0.5),
    "lpes": LPES(factors=1.5),
    "siw": SIW(),
    "ms_poe": MsPoE(),
    "zero_tuning": ZeroTuning(factor=2.0),
    "self_extend": SelfExtend(),
    "dysco": DySCO(heads=((0, 0),)),
}

_SCREENED = 5  # questions
_T = 2.132  # 95 % quantile of Student's t with _SCREENED - 1 degrees of freedom
_NATS = 3.0
_TIMED_PROMPTS, _TIMED_TOKENS = 2, 16


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Findings):
    """What was measured, and what follows from it.

    Attributes:
        curves: over gold positions.
        answer_time_ratios: time of an answer under a method, as a ratio to the unmodified model's,
            by label; empty where times were not measured.
        shape: of the unmodified model's curve.
        answer: whether the model loses the middle.
        recommendation: what to use.
        profile: the same as a method: the order that was measured, the method, both or none.
        next_steps: what to do now.
        left_out: methods that the model cannot take, or that collapse on it, with the reason.
    """

    curves: PositionCurves
    answer_time_ratios: Mapping[str, float]
    shape: Shape
    answer: MiddleAnswer
    recommendation: Recommendation
    profile: Profile
    next_steps: tuple[str, ...]
    left_out: Mapping[str, str]


def diagnose(
    model: TextGenerator,
    task: Task,
    methods: Sequence[MethodSpec] | None = None,
    measurement: Measurement | None = None,
    *,
    cost: bool = True,
    **options: Any,
) -> Diagnosis:
    """Measure a model on a task by the position of the gold document, and say what to use.

    Args:
        model: to measure.
        task: one with gold documents.
        methods: what to try; those under which the gold answers to the first questions become
            unlikely are left out (`collapse`). By default those of
            `UNCALIBRATED` that the model can take, and presets that were fitted to it;
            none where the model is behind an HTTP address.
        measurement: how; by default 100 questions, three positions, controls.
        cost: measure times too, where the model's weights are here.
        options: of `run`: ``records``, ``progress``, ``workers`` and the others.

    Raises:
        ConfigError: the task has no gold documents.
        RagMiddleError: as `rag_middle.evaluation.run` does.
    """
    require_gold_documents(task)
    measurement = measurement or Measurement(positions=3, controls=True)
    check_measurement(task, methods or (), measurement)
    left_out: dict[str, str] = {}
    here = model if isinstance(model, RagMiddleModel) else None
    if methods is None:
        methods, left_out = default_methods(model)
    elif here:  # those tried by default are known not to collapse
        chosen = labelled_methods(methods)
        left_out = collapsed(here, task, chosen[1:], measurement, options)
        methods = [method for method in chosen if method.label not in left_out]
    results = run(model, task, methods, measurement, **options)
    ratios = answer_time_ratios(here, results) if cost and here else {}
    figures = findings(results)
    curves = figures.curves
    assert curves is not None  # there are gold documents
    shape = shape_of(Bootstrap(results.scores(BASELINE)))
    scores = {label: results.scores(label) for label in results.labels}
    recommendation = recommend(scores, results.metric, ratios)
    in_use = curves[method_in_use(recommendation, curves)]
    alone = figures.summary.control("gold_only")
    remarks = notes_on_gold(results.items)
    if recommendation.reason != "too_few_questions":
        remarks += notes(figures.summary, shape)
    return Diagnosis(
        **vars(figures) | {"notes": (*figures.notes, *remarks)},
        answer_time_ratios=ratios,
        shape=shape,
        answer=loses_middle(recommendation, shape, curves),
        recommendation=recommendation,
        profile=recommended_profile(results, curves, in_use, here, recommendation, figures.made),
        next_steps=next_steps(
            recommendation,
            order_advice(in_use, curves.positions, curves.metric),
            weights=here is not None,
            calibratable=_calibratable(here, results, recommendation) if here else (),
            crowded=alone is not None and alone.difference.low > 0,
            in_use=in_use.label,
        ),
        left_out=left_out,
    )


def answer_time_ratios(model: RagMiddleModel, results: Results) -> dict[str, float]:
    """Time of an answer as long as it may be under each method, next to the unmodified model's.

    Medians over a few of the questions. Every prompt is answered under each method in turn, so
    that whatever slows the machine slows all of them; on a GPU once more beforehand, to warm up.
    """
    task, measurement = results.task, results.measurement
    conditions = measurement.conditions(task)
    middle = conditions[len(results.positions) // 2]
    prompts = [task.prompt(item, middle) for item in results.items[:_TIMED_PROMPTS]]
    tokens = measurement.max_new_tokens or task.max_new_tokens

    def seconds(prompt: ContextPrompt, method: LabelledMethod) -> float:
        [answer] = model.batch(
            [prompt],
            method=method.method,
            max_new_tokens=_TIMED_TOKENS,
            on_missing_documents="ignore",
            template=measurement.template,
        )
        steps = max(1, answer.usage.completion_tokens - 1)
        timings = answer.timings
        return timings.tokenize + timings.prefill + (tokens - 1) * timings.decode / steps

    if model.device.type == "cuda":
        for method in results.methods:
            seconds(prompts[0], method)
    times = [[seconds(prompt, method) for method in results.methods] for prompt in prompts]
    medians = [median(column) for column in zip(*times, strict=True)]
    return {label: own / medians[0] for label, own in zip(results.labels, medians, strict=True)}


# -- the recommendation as a method ---------------------------------------------------------------


def recommended_profile(
    results: Results,
    curves: PositionCurves,
    in_use: PositionCurve,
    model: RagMiddleModel | None,
    recommendation: Recommendation,
    made: str,
) -> Profile:
    """The recommendation as a method: a measured order, a method, both or none.

    The order is that of the method in use. It has accuracy at the positions that were measured and
    straight lines between them, and is left out where no two of them differ significantly.

    Args:
        in_use: the curve of the method in use.
        model: None where its weights are not here.
        made: the date.
    """
    [method] = [each.method for each in results.methods if each.label == in_use.label]
    parts = [part for part in method.parts if not part.is_neutral]
    values = [estimate.value for estimate in in_use.estimates]
    if recommendation.compares and not in_use.gap.includes_zero:
        at = np.interp(range(curves.documents), curves.positions, values)
        parts.insert(0, MeasuredOrder(accuracy=tuple(at.round(6).tolist())))
    options = {part.name: options_in_words(part) for part in parts}
    return Profile(
        method="+".join(options) or BASELINE,
        options=options if len(options) > 1 else next(iter(options.values()), {}),
        model=model_facts(model.model, model.tokenizer)
        if model
        else ModelFacts(id=str(results.model["name"])),
        note=recommendation.text,
        seed=results.measurement.seed,
        software=results.software,
        data={
            "task": results.task.to_dict(),
            "template": results.measurement.template,
            "documents": curves.documents,
            "questions": curves.questions,
            "searched": question_digests(results),
            "date": made,
        },
        scores={
            "metric": curves.metric.name,
            "positions": list(curves.positions),
            "method": in_use.label,
            "accuracy": [asdict(estimate) for estimate in in_use.estimates],
            "gap": asdict(in_use.gap),
        },
    )


def profile_in_words(profile: Profile) -> str:
    """What a profile of `diagnose` does: ``documents in the measured order``; empty for nothing."""
    names = profile.method.split("+")
    order = "documents in the measured order" if MeasuredOrder.name in names else ""
    others = [name for name in names if name not in (MeasuredOrder.name, BASELINE)]
    return ", ".join(filter(None, (order, *others)))


# -- what is known of the methods -----------------------------------------------------------------


def _calibratable(
    model: RagMiddleModel, results: Results, recommendation: Recommendation
) -> tuple[str, ...]:
    """Methods that calibration may help, less those that did not help or were fitted already."""
    if not results.task.by_likelihood:  # what the searches compare
        return ()
    # A method with a provenance has parameters from a profile.
    parts = [part for labelled in results.methods for part in labelled.method.parts]
    fitted = {part.name for part in parts if part.provenance is not None}
    fitted |= {preset.partition(":")[0] for preset in fitted_presets(model)}
    failed = {verdict.label for verdict in recommendation.verdicts if not verdict.helps}
    able, _ = _able(model, CALIBRATED)
    return tuple(name for name in able if name not in fitted | failed)


# -- which methods to try, and which to drop ------------------------------------------------------


def default_methods(model: TextGenerator) -> tuple[list[str], dict[str, str]]:
    """The methods to try where none are named, and why the model cannot take the others.

    Args:
        model: one behind an HTTP address is asked under none.
    """
    if not isinstance(model, RagMiddleModel):
        return [], {}
    able, left_out = _able(model, {name: name for name in UNCALIBRATED})
    return [*able, *fitted_presets(model)], left_out


def _able(
    model: RagMiddleModel, methods: Mapping[str, str | Method]
) -> tuple[list[str], dict[str, str]]:
    """Those that the model can take, and why not the others."""
    left_out: dict[str, str] = {}
    for name, method in methods.items():
        try:
            check_takes(model, method)
        except (UnsupportedArchitectureError, MethodConfigError) as error:
            left_out[name] = str(error)
    return [name for name in methods if name not in left_out], left_out


def fitted_presets(model: RagMiddleModel) -> tuple[str, ...]:
    """Presets that were fitted to these very weights and helped on held-out questions.

    Args:
        model: whose weights they must have been fitted to: after another training they say nothing.

    Returns:
        Names for `resolve_method`, such as ``"lpes:PRESET"``.
    """
    recommended = {
        f"{method}:{name}": profile.model
        for method in CALIBRATED
        for name, profile in measured_profiles(method).items()
        if profile.recommended and profile.model.weights_sample is not None
    }
    if not recommended:
        return ()
    facts = model_facts(model.model, model.tokenizer)
    return tuple(
        preset
        for preset, fitted_to in recommended.items()
        if not fitted_to.shape_differences(facts) and not fitted_to.version_differences(facts)
    )


def collapse(base: Sequence[float], own: Sequence[float]) -> str | None:
    """Why a method is dropped; None where it is not.

    It is where the mean is lower by more than 3 nats (the correct answer is 20 times less likely),
    and lower at all by a one-sided paired t-test at 5 %. Methods that a model was not made for fail
    by far more: Ms-PoE with its default ratios by 10 nats on SmolLM2-135M.

    Args:
        base: log-likelihoods of the correct answers to the first five questions, unmodified.
        own: of the same under the method.
    """
    differences = [after - before for before, after in zip(base, own, strict=True)]
    mean, error = fmean(differences), stdev(differences) / sqrt(_SCREENED)
    if mean >= -_NATS or mean + _T * error >= 0:
        return None
    return (
        f"dropped after {_SCREENED} questions: the log-likelihood of the correct answer fell from "
        f"{fmean(base):.1f} to {fmean(own):.1f} on average"
    )


def collapsed(
    model: RagMiddleModel,
    task: Task,
    methods: Sequence[LabelledMethod],
    measurement: Measurement,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """Labels of methods to ask nothing more, with the reason.

    The first five questions are asked, with the gold document in the middle; none where there are
    no more than those.

    Args:
        measurement: of all questions.
        options: of `run`; answers are kept in ``records`` where the run scores by likelihood too,
            so that it does not ask again, and beside them otherwise.
    """
    positions = measurement.gold_positions(task)
    has_likelihoods = task.by_likelihood and methods
    if not has_likelihoods or len(task.items(measurement.limit, measurement.seed)) <= _SCREENED:
        return {}
    few = Measurement(
        limit=_SCREENED,
        positions=(positions[len(positions) // 2],),
        scoring="likelihood",
        metric="log_likelihood",
        seed=measurement.seed,
        max_batch_size=measurement.max_batch_size,
        template=measurement.template,
    )
    records = options.get("records")
    if records and measurement.scoring != "likelihood":
        records = Path(records).with_suffix(".screening.jsonl")
    results = run(model, task, methods, few, records=records, workers=options.get("workers"))
    scores = {label: results.scores(label)[:, 0].tolist() for label in results.labels}
    reasons = {label: collapse(scores[BASELINE], own) for label, own in scores.items()}
    return {label: reason for label, reason in reasons.items() if reason}
