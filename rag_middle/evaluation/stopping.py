"""Stop asking once the question is decided: looks at the answers so far, at growing numbers.

A group sequential design. Each look has its own share of the 5 % that a claim may be false with,
and the shares add up to 5 % (Bonferroni; early looks get little of it, so that the last one judges
nearly as a run in full does). "No" is decided where the answers so far make a "yes" at the end
unlikely, which costs no false claims, only missed ones. How likely it is: predictive power, the
questions still missing being drawn from a distribution that is itself drawn from what those asked
leave open (the Bayesian bootstrap, Rubin 1981). How often either goes wrong is simulated in
``benchmarks/sequential_stopping.py``.

Prompts are spent where something is open: the unmodified model comes first, methods are asked once
its positions are found to differ, and one that will hardly help is not asked any further.
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
from rag_middle.evaluation.measurement import (
    BASELINE,
    Measurement,
    MethodSpec,
)
from rag_middle.evaluation.metrics import Metric, metric
from rag_middle.evaluation.results import Results
from rag_middle.evaluation.statistics import CONFIDENCE, RESAMPLES, Bootstrap, Estimate
from rag_middle.evaluation.tasks import Task
from rag_middle.evaluation.trials import (
    EstimateCallback,
    InterimCallback,
    PlanCallback,
    ProgressCallback,
    check_measurement,
    check_takes,
    run,
)
from rag_middle.generation import TextGenerator
from rag_middle.wording import Argument

__all__ = ["ask_until_decided", "is_gap_found", "looks", "run_until_decided", "worth_asking"]

Array = NDArray[np.float64]

#: Scores by label for a number of questions, methods, a confidence, and methods left out.
Ask = Callable[[int, Sequence[str], float, Mapping[str, int]], Mapping[str, Array]]

_GROWTH = 1.4  # of the number of questions from look to look
_LARGEST = 0.75  # share of the questions at a look before the last one
_ERROR_AT_END = 0.04  # that a claim is false; the looks before the end share the rest
_UNLIKELY = 0.1  # predictive power below which a "no" is decided
_FUTURES = 1000  # drawn for it


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
        methods: what to compare; asked once the positions of the unmodified model differ.
        measurement: how; its `limit` says how many questions are asked at most.
        records: a file to keep answers in, and to continue from.
        progress: called with the number of answers so far and the most there can be.
        estimated: called with the seconds that all questions would take, at most: of the unmodified
            model, and where methods are asked, once more with them.
        planned: called before the first prompt of each look.
        workers: that answer, as in `run`.
        interim: as of `run`, with the most questions there can be.

    Returns:
        Results of the questions that were asked, with the confidence of the last look; methods
        that were not asked to the end are in `Results.left_out`.

    Raises:
        EvaluationConfigError: neither the measurement nor the task says how many questions there
            are.
        RagMiddleError: as `run` does.
    """
    measurement = measurement or Measurement()
    labelled = check_measurement(task, methods, measurement)
    for entry in labelled:
        check_takes(model, entry.method)
    most = [n for n in (measurement.limit, task.num_questions) if n is not None]
    if not most:
        raise EvaluationConfigError(
            f"{task.name} does not say how many questions there are: give ", Argument("limit"), "."
        )
    questions = len(task.distinct_items(min(most), measurement.seed)[0])
    by_label = {entry.label: entry for entry in labelled}
    of_a_method = len(measurement.conditions(task)) + len(measurement.grid_conditions(task))
    total = questions * (of_a_method * len(labelled) + len(measurement.control_conditions(task)))
    with tempfile.TemporaryDirectory() as folder:
        file = records or Path(folder) / "records.jsonl"
        answers: list[Results] = []

        def ask(
            count: int, labels: Sequence[str], confidence: float, left_out: Mapping[str, int]
        ) -> Mapping[str, Array]:
            scale, earlier = questions / count, of_a_method * sum(left_out.values())
            most_methods = max((len(results.methods) for results in answers), default=0)
            tell = estimated if 1 + len(labels) > most_methods else None
            results = run(
                model,
                task,
                [by_label[label] for label in labels],
                replace(measurement, limit=count),
                records=file,
                progress=progress and (lambda done, _: progress(earlier + done, total)),
                estimated=tell and (lambda s, left: tell(s * scale, round(left * scale))),
                planned=planned,
                workers=workers,
                interim=interim and (lambda so_far, _: interim(so_far, questions)),
            )
            answers.append(replace(results, confidence=confidence))
            return {entry.label: results.scores(entry.label) for entry in results.methods}

        scored = metric(measurement.metric_names(task)[0])
        left_out = ask_until_decided(
            ask, [entry.label for entry in labelled[1:]], questions, scored
        )
        return replace(answers[-1], left_out=left_out)


def ask_until_decided(
    ask: Ask,
    methods: Sequence[str],
    questions: int,
    scored: Metric,
    *,
    resamples: int = RESAMPLES,
) -> dict[str, int]:
    """Look at answers until what to recommend is decided, or all questions are asked.

    Args:
        ask: gives scores by label, ``"none"`` among them, `[questions, positions]`, for so many
            questions, methods, the confidence of the look and methods left out so far.
        methods: to compare with the unmodified model.
        questions: of the whole run.
        scored: metric of the scores.
        resamples: for intervals.

    Returns:
        Methods that were not asked at the last look, with the questions that they were asked.
    """
    asking: tuple[str, ...] = ()
    left_out: dict[str, int] = {}
    for count, confidence in looks(questions):
        scores = ask(count, asking, confidence, left_out)
        gap = is_gap_found(scores[BASELINE], questions, confidence, resamples=resamples)
        if gap and methods and not asking:
            asking = tuple(methods)
            scores = ask(count, asking, confidence, left_out)
        if count == questions or gap is False or (gap and not methods):
            break
        if asking:
            going_on = worth_asking(
                scores, scored, questions, confidence, compared=len(methods), resamples=resamples
            )
            if gap and not going_on:
                break
            going_on = going_on or frozenset(asking)  # the gap is what is open again
            left_out |= {label: count for label in asking if label not in going_on}
            asking = tuple(label for label in asking if label in going_on)
    return left_out if asking else dict.fromkeys(methods, 0)


def is_gap_found(
    base: Array,
    questions: int,
    confidence: float,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> bool | None:
    """Whether positions of the unmodified model differ; None: the questions so far do not tell.

    Args:
        base: scores, `[questions so far, positions]`.
        questions: of the whole run.
        confidence: of this look.
        resamples: for intervals.
        seed: of the resamples.
    """
    bootstrap = Bootstrap(base, resamples=resamples, seed=seed)
    if not bootstrap.gap(confidence).includes_zero:
        return True
    at_end = bootstrap.gap(1 - _ERROR_AT_END)
    power = _power(base, questions, seed, lambda means: np.ptp(means, axis=-1), at_end)
    return False if power < _UNLIKELY else None


def worth_asking(
    scores: Mapping[str, Array],
    metric: Metric,
    questions: int,
    confidence: float,
    *,
    compared: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> frozenset[str]:
    """Methods that further questions may tell more of; none: what to recommend is decided.

    Args:
        scores: by label, `[questions so far, positions]`, ``"none"`` among them.
        metric: of the scores.
        questions: of the whole run.
        confidence: of this look.
        compared: methods of the run, those included that are not asked any more.
        resamples: for intervals.
        seed: of the resamples.
    """
    now, at_end = (
        recommend(
            scores, metric, confidence=level, compared=compared, resamples=resamples, seed=seed
        )
        for level in (confidence, 1 - _ERROR_AT_END)
    )
    lowest = {label: float(own.mean(axis=0).min()) for label, own in scores.items()}
    best = max((verdict.label for verdict in now.verdicts), key=lowest.__getitem__)
    likely = frozenset(
        last.label for last in at_end.verdicts if _may_help(scores, last, questions, seed)
    )
    undecided = likely - {verdict.label for verdict in now.verdicts if verdict.helps}
    # Where the best one helps, it is what is recommended, whatever becomes of the others.
    matters = undecided if now.label == BASELINE else undecided & {best}
    return likely if matters else frozenset()


def _may_help(scores: Mapping[str, Array], verdict: Verdict, questions: int, seed: int) -> bool:
    """Whether a method helps with the answers so far, or could still do so in the end."""
    base, own = scores[BASELINE], scores[verdict.label]
    if verdict.helps or np.array_equal(base, own):
        return verdict.helps
    count = base.shape[1]

    def gain(means: Array) -> Array:
        difference: Array = means[..., count:].min(-1) - means[..., :count].min(-1)
        return difference

    both = np.concatenate([base, own], axis=1)
    return _power(both, questions, seed, gain, verdict.worst_difference) >= _UNLIKELY


def _power(
    scores: Array,
    questions: int,
    seed: int,
    statistic: Callable[[Array], Array],
    estimate: Estimate,
) -> float:
    """Chance that the interval of a statistic lies above zero in the end.

    Args:
        scores: so far, `[questions so far, columns]`.
        questions: in the end.
        seed: of the draws.
        statistic: of the column means, `[..., columns]` to `[...]`.
        estimate: of it so far, with the confidence of the end; its interval shrinks with the root
            of the number of questions.
    """
    so_far = len(scores)
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(so_far), size=_FUTURES)
    drawn = rng.multinomial(questions - so_far, weights)
    means = (scores.sum(axis=0) + drawn @ scores) / questions
    half_width = (estimate.value - estimate.low) * sqrt(so_far / questions)
    return float(np.mean(statistic(means) > half_width))
