"""Methods under which right answers become unlikely are found with a few questions.

Methods that a model was not made for fail by far: Ms-PoE with its default ratios by 10 nats on
SmolLM2-135M, where PINE gains 1 and RoToR loses 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from rag_middle.evaluation.measurement import BASELINE, Measurement, MethodSpec
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.trials import run
from rag_middle.generation import RagMiddleModel

SCREENED = 5  # questions
_T = 2.132  # 95 % quantile of Student's t with SCREENED - 1 degrees of freedom
_NATS = 3.0  # the right answer is 20 times less likely


def collapsed_methods(
    model: RagMiddleModel, task: Task, methods: Sequence[MethodSpec], measurement: Measurement
) -> dict[str, str]:
    """Labels of the methods under which right answers become unlikely, with the reason.

    The first `SCREENED` questions are scored by the log-likelihood of the right answer, with the
    gold document in the middle.
    """
    positions = measurement.gold_positions(task)
    few = Measurement(
        limit=SCREENED,
        positions=(positions[len(positions) // 2],),
        scoring="likelihood",
        metric="log_likelihood",
        seed=measurement.seed,
        max_batch_size=measurement.max_batch_size,
        template=measurement.template,
    )
    results = run(model, task, methods, few)
    scores = {
        method.label: results.scores(method.label)[:, 0].tolist() for method in results.methods
    }
    reasons = {label: collapse(scores[BASELINE], own) for label, own in scores.items()}
    return {label: reason for label, reason in reasons.items() if reason}


def collapse(base: Sequence[float], own: Sequence[float]) -> str | None:
    """Why a method is dropped: by a one-sided paired t-test at 5 %, and by more than `_NATS`.

    Args:
        base: log-likelihoods of the right answers to `SCREENED` questions, unmodified.
        own: of the same under the method.

    Returns:
        None where it is not dropped.
    """
    differences = [after - before for before, after in zip(base, own, strict=True)]
    mean, error = fmean(differences), stdev(differences) / sqrt(SCREENED)
    if mean >= -_NATS or mean + _T * error >= 0:
        return None
    return (
        f"dropped after {SCREENED} questions: the log-likelihood of the right answer fell from "
        f"{fmean(base):.1f} to {fmean(own):.1f} on average"
    )
