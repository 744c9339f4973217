"""A method under which gold answers become unlikely is not asked all questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rag_middle.evaluation.measurement import BASELINE, LabelledMethod, Measurement
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.trials import run
from rag_middle.generation import RagMiddleModel

SCREENED = 5
_T = 2.132  # 95 % quantile of Student's t with SCREENED - 1 degrees of freedom
_NATS = 3.0


def collapse(base: Sequence[float], own: Sequence[float]) -> str | None:
    """Why a method is dropped; None where it is not.

    It is where the mean is lower by more than 3 nats (the right answer is 20 times less likely),
    and lower at all by a one-sided paired t-test at 5 %. Methods that a model was not made for fail
    by far more: Ms-PoE with its default ratios by 10 nats on SmolLM2-135M.

    Args:
        base: log-likelihoods of the right answers to `SCREENED` questions, unmodified.
        own: of the same under the method.
    """
    differences = [after - before for before, after in zip(base, own, strict=True)]
    mean, error = fmean(differences), stdev(differences) / sqrt(SCREENED)
    if mean >= -_NATS or mean + _T * error >= 0:
        return None
    return (
        f"dropped after {SCREENED} questions: the log-likelihood of the right answer fell from "
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
    if not task.by_likelihood or task.layout(2) is not None or not positions or not methods:
        return {}
    few = Measurement(
        limit=SCREENED,
        positions=positions[len(positions) // 2 : len(positions) // 2 + 1],
        scoring="likelihood",
        metric="log_likelihood",
        seed=measurement.seed,
        max_batch_size=measurement.max_batch_size,
        template=measurement.template,
    )
    records = options.get("records")
    beside = records and Path(records).with_suffix(".screening.jsonl")
    results = run(model, task, methods, few, records=beside, workers=options.get("workers"))
    if len(results.items) < SCREENED:
        return {}
    scores = {each.label: results.scores(each.label)[:, 0].tolist() for each in results.methods}
    reasons = {label: collapse(scores[BASELINE], own) for label, own in scores.items()}
    return {label: reason for label, reason in reasons.items() if reason}
