"""What to do after a diagnosis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.evaluation.recommendation import Recommendation
from rag_middle.evaluation.shape import Shape
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, SIW, Method, MsPoE, PositionalHiddenStates

__all__ = ["FITTED_BY_CALIBRATION", "next_steps", "worth_calibrating"]

#: Methods that ``rag-middle calibrate`` has a search for, each with settings that any model of a
#: fitting build takes.
FITTED_BY_CALIBRATION: Mapping[str, Method] = MappingProxyType(
    {
        "positional_hidden_states": PositionalHiddenStates(channels=(0,), factor=0.5),
        "lpes": LPES(factors=1.5),
        "siw": SIW(),
        "ms_poe": MsPoE(),
    }
)


def worth_calibrating(model: RagMiddleModel, fitted: Collection[str] = ()) -> tuple[str, ...]:
    """Methods with a search that this model can take.

    Args:
        model: that they would be fitted to.
        fitted: names of methods that are fitted to it already.
    """
    able = []
    for name, method in FITTED_BY_CALIBRATION.items():
        try:
            RagMiddleModel(model.model, model.tokenizer, method=method)
        except (UnsupportedArchitectureError, MethodConfigError):
            continue
        if name not in fitted:
            able.append(name)
    return tuple(able)


def next_steps(
    recommendation: Recommendation, shape: Shape, calibratable: Collection[str]
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
    free = {
        "primacy": ("Put the best documents first: it costs nothing.",),
        "recency": ("Put the best documents last: it costs nothing.",),
        "U": ("Put the best documents at both ends, the worst in the middle: it costs nothing.",),
    }.get(shape.name, ())
    calibrate = _calibrate(tuple(calibratable))
    if reason == "nothing_tried":
        return (*free, "Name methods to try with --methods.", *calibrate)
    if reason == "no_help":
        return (*free, *calibrate)
    label = recommendation.label
    check = f"Check {label} on questions that were not used here before relying on it."
    return (check, *free, *calibrate)


def _calibrate(methods: tuple[str, ...]) -> tuple[str, ...]:
    if not methods:
        return ()
    first, others = methods[0], methods[1:]
    or_else = f" (or {', '.join(others)})" if others else ""
    return (
        f"Settings fitted to this model may do better. `rag-middle calibrate --method {first}`"
        f"{or_else} with the same --model and --data searches for them and checks them on other "
        "questions; then run this again with "
        f"`--methods profile:rag-middle-calibration/{first}.json`.",
    )
