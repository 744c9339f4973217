"""Stop asking once the question is decided: looks at the answers so far, at growing numbers.

A group sequential design. Each look has its own share of the 5 % that a claim may be false with,
and the shares add up to 5 % (Bonferroni), so looking several times is paid for. "No" is decided
where the answers so far make a "yes" at the end unlikely (predictive power: the questions still
missing are drawn from those asked), which costs no false claims, only missed ones. How often either
goes wrong is simulated in ``benchmarks/sequential_stopping.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rag_middle.errors import EvaluationConfigError
from rag_middle.evaluation.asking import AnsweringWorkers
from rag_middle.evaluation.conclusions import MIN_QUESTIONS, Verdict, recommend
from rag_middle.evaluation.measurement import BASELINE, Measurement, MethodSpec
from rag_middle.evaluation.metrics import Metric
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.statistics import CONFIDENCE, RESAMPLES, Bootstrap
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.trials import (
    EstimateCallback,
    InterimCallback,
    PlanCallback,
    ProgressCallback,
    run,
)
from rag_middle.generation import TextGenerator
from rag_middle.wording import Argument

__all__ = ["is_decided", "looks", "run_until_decided"]

Array = NDArray[np.float64]

_GROWTH = 1.6  # of the number of questions from look to look
_LARGEST = 0.75  # share of the questions at a look before the last one
_ERROR_AT_END = 0.03  # that a claim is false; the looks before the end share the rest
_UNLIKELY = 0.1  # predictive power below which a "no" is decided


def looks(questions: int) -> tuple[tuple[int, float], ...]:
    """Numbers of questions at which to look, the last one being all, with their confidence."""
    counts: list[int] = []
    count = MIN_QUESTIONS
    while count < _LARGEST * questions:
        counts.append(count)
        count = ceil(_GROWTH * count)
    if not counts:
        return ((questions, CONFIDENCE),)
    early = 1 - (1 - CONFIDENCE - _ERROR_AT_END) / len(counts)
    return (*((count, early) for count in counts), (questions, 1 - _ERROR_AT_END))


def run_until_decided(
    model: TextGenerator,
    task: Task,
    methods: Sequence[MethodSpec] = (BASELINE,),
    measurement: Measurement | None = None,
    *,
    records: str | Path | None = None,
    progress: ProgressCallback | None = None,
    estimated: EstimateCallback | None = None,
    planned: PlanCallback | None = None,
    workers: AnsweringWorkers | None = None,
    interim: InterimCallback | None = None,
) -> Results:
    """`rag_middle.evaluation.run`, which ends at the first look at which the question is decided.

    Args:
        model: to measure.
        task: with gold documents.
        methods: what to compare.
        measurement: how; its `limit` says how many questions are asked at most.
        records: a file to keep answers in, and to continue from.
        progress: called with the number of answers so far and the most there can be.
        estimated: called once with the seconds that all questions would take, at most.
        planned: called once before the first prompt of each look.
        workers: that answer, as in `run`.
        interim: as of `run`, with the most questions there can be.

    Returns:
        Results of the questions that were asked, with the confidence of the last look.

    Raises:
        EvaluationConfigError: neither the measurement nor the task says how many questions there
            are.
        RagMiddleError: as `run` does.
    """
    measurement = measurement or Measurement()
    most = [n for n in (measurement.limit, task.num_questions) if n is not None]
    if not most:
        raise EvaluationConfigError(
            f"{task.name} does not say how many questions there are: give ", Argument("limit"), "."
        )
    questions = min(most)
    first, _ = looks(questions)[0]
    with tempfile.TemporaryDirectory() as folder:
        file = records or Path(folder) / "records.jsonl"
        for count, confidence in looks(questions):
            scale = questions / count
            results = run(
                model,
                task,
                methods,
                replace(measurement, limit=count),
                records=file,
                progress=_scaled_progress(progress, scale),
                estimated=_scaled_estimate(estimated, scale) if count == first else None,
                planned=planned,
                workers=workers,
                interim=interim and (lambda so_far, _: interim(so_far, questions)),
            )
            results = replace(results, confidence=confidence)
            scores = {method.label: results.scores(method.label) for method in results.methods}
            if count == questions or is_decided(scores, results.metric, questions, confidence):
                break
    return results


def is_decided(
    scores: Mapping[str, Array],
    metric: Metric,
    questions: int,
    confidence: float,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> bool:
    """Whether the questions still missing could hardly change what is recommended.

    Args:
        scores: by label, `[questions so far, positions]`, ``"none"`` among them.
        metric: of the scores.
        questions: of the whole run.
        confidence: of this look.
        resamples: for intervals and predictive power.
        seed: of the resamples.
    """
    base = scores[BASELINE]
    now = recommend(scores, metric, confidence=confidence, resamples=resamples, seed=seed)
    gap = Bootstrap(base, resamples=resamples, seed=seed).gap(confidence)
    if gap.includes_zero:
        half = gap.value - gap.low
        return _power(base, questions, seed, lambda means: np.ptp(means, axis=-1), half) < _UNLIKELY
    if now.reason == "cannot_answer":
        return False
    lowest = {label: float(own.mean(axis=0).min()) for label, own in scores.items()}
    best = max((verdict.label for verdict in now.verdicts), key=lowest.__getitem__, default=None)
    return all(
        verdict.helps or _unlikely_to_help(scores, verdict, questions, seed)
        for verdict in now.verdicts
        # Where the best one helps, it is what is recommended, whatever becomes of the others.
        if now.label == BASELINE or verdict.label == best
    )


def _scaled_progress(progress: ProgressCallback | None, scale: float) -> ProgressCallback | None:
    """Of a part of the questions, as progress of the most there can be."""
    return progress and (lambda done, total: progress(done, round(total * scale)))


def _scaled_estimate(estimated: EstimateCallback | None, scale: float) -> EstimateCallback | None:
    return estimated and (lambda seconds, left: estimated(seconds * scale, round(left * scale)))


def _unlikely_to_help(
    scores: Mapping[str, Array], verdict: Verdict, questions: int, seed: int
) -> bool:
    base, own = scores[BASELINE], scores[verdict.label]
    if np.array_equal(base, own):
        return True
    count = base.shape[1]
    worst = verdict.worst_difference

    def gain(means: Array) -> Array:
        difference: Array = means[..., count:].min(-1) - means[..., :count].min(-1)
        return difference

    both = np.concatenate([base, own], axis=1)
    return _power(both, questions, seed, gain, worst.value - worst.low) < _UNLIKELY


def _power(
    scores: Array,
    questions: int,
    seed: int,
    statistic: Callable[[Array], Array],
    half_width: float,
) -> float:
    """Chance that the interval of a statistic lies above zero in the end.

    Args:
        scores: so far, `[questions so far, columns]`; the missing ones are drawn from them.
        questions: in the end.
        seed: of the draws.
        statistic: of the column means, `[..., columns]` to `[...]`.
        half_width: of its interval so far, below its value; it shrinks with the root of the number.
    """
    so_far = len(scores)
    missing = questions - so_far
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(missing, np.full(so_far, 1 / so_far), size=1000)
    means = (scores.sum(axis=0) + drawn @ scores) / questions
    return float(np.mean(statistic(means) > half_width * sqrt(so_far / questions)))
