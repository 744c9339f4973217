"""Which methods a diagnosis tries, and which it drops after a few questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.evaluation.measurement import BASELINE, LabelledMethod, Measurement
from rag_middle.evaluation.runner import check_takes, run
from rag_middle.evaluation.tasks import Task
from rag_middle.generation import MethodLike, RagMiddleModel, TextGenerator, model_facts
from rag_middle.methods import (
    LPES,
    SIW,
    DySCO,
    Method,
    MsPoE,
    PositionalHiddenStates,
    SelfExtend,
    ZeroTuning,
)
from rag_middle.profiles import measured_profiles

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


def default_methods(model: TextGenerator) -> tuple[list[str], dict[str, str]]:
    """The methods to try where none are named, and why the model cannot take the others.

    Args:
        model: one behind an HTTP address is asked under none.
    """
    if not isinstance(model, RagMiddleModel):
        return [], {}
    able, left_out = _able(model, {name: name for name in UNCALIBRATED})
    return [*able, *fitted_presets(model)], left_out


def worth_calibrating(model: RagMiddleModel, tried: Collection[str] = ()) -> tuple[str, ...]:
    """Methods with a search that this model can take.

    Args:
        tried: names of methods to leave out: they are fitted to it already, or did not help.
    """
    able, _ = _able(model, CALIBRATED)
    return tuple(name for name in able if name not in tried)


def _able(
    model: RagMiddleModel, methods: Mapping[str, MethodLike]
) -> tuple[list[str], dict[str, str]]:
    """Names of the methods that the model can take, and of the others with the reason."""
    able, left_out = [], {}
    for name, method in methods.items():
        try:
            check_takes(model, method)
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
    facts = model_facts(model.model, model.tokenizer, all_weights=False)
    return tuple(
        preset
        for preset, fitted_to in recommended.items()
        if not fitted_to.shape_differences(facts) and not fitted_to.version_differences(facts)
    )


def collapse(base: Sequence[float], own: Sequence[float]) -> str | None:
    """Why a method is dropped; None where it is not.

    It is where the mean is lower by more than 3 nats (the right answer is 20 times less likely),
    and lower at all by a one-sided paired t-test at 5 %. Methods that a model was not made for fail
    by far more: Ms-PoE with its default ratios by 10 nats on SmolLM2-135M.

    Args:
        base: log-likelihoods of the right answers to the first five questions, unmodified.
        own: of the same under the method.
    """
    differences = [after - before for before, after in zip(base, own, strict=True)]
    mean, error = fmean(differences), stdev(differences) / sqrt(_SCREENED)
    if mean >= -_NATS or mean + _T * error >= 0:
        return None
    return (
        f"dropped after {_SCREENED} questions: the log-likelihood of the right answer fell from "
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

    The first questions are asked, with the gold document in the middle.

    Args:
        measurement: of all questions.
        options: of `run`; answers are kept beside ``records``.
    """
    positions = measurement.gold_positions(task)
    if not task.by_likelihood or not methods:
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
    beside = records and Path(records).with_suffix(".screening.jsonl")
    results = run(model, task, methods, few, records=beside, workers=options.get("workers"))
    if len(results.items) < _SCREENED:
        return {}
    scores = {each.label: results.scores(each.label)[:, 0].tolist() for each in results.methods}
    reasons = {label: collapse(scores[BASELINE], own) for label, own in scores.items()}
    return {label: reason for label, reason in reasons.items() if reason}
