"""What follows from the figures: every rule by which a diagnosis says something.

All rules read the same scores and the same intervals that the tables show. `answer` says whether
the middle is lost, `recommend` which method to use or none, `order_advice` where the best documents
go, `next_steps` what to do now, and `notes` what else is to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Literal

import numpy as np

from rag_middle.evaluation.conditions import Item
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import Metric, best_subspan_em
from rag_middle.evaluation.results import PositionCurve, PositionCurves, Summary
from rag_middle.evaluation.statistics import (
    CONFIDENCE,
    NONE_SEEN,
    SHAPES,
    Array,
    Bootstrap,
    Estimate,
    Shape,
    comparison_confidence,
    high_positions,
)
from rag_middle.wording import counted, listed, percent, shortened

MIN_QUESTIONS = 20
_MIN_ACCURACY = 0.05  # below it, position is not the problem
_MANY_POSITIONS = 4  # so many at most are named one by one

Reason = Literal[
    "too_few_questions", "cannot_answer", "no_gap", "nothing_tried", "no_help", "helps"
]


@dataclass(frozen=True, slots=True)
class MiddleAnswer:
    """Whether the model loses the middle.

    Attributes:
        label: ``"yes"`` for a U-shape only; ``"unknown"`` where the questions do not tell.
        text: a sentence that says so, with the highest and lowest position.
    """

    label: Literal["yes", "no", "unknown"]
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one method helps.

    Attributes:
        label: of the method.
        worst_difference: worst position under the method minus worst position without, paired over
            questions, with the confidence of `comparison_confidence`.
        mean_difference: the same for the mean over positions.
        helps: the worst position gains significantly, and the mean does not fall.
    """

    label: str
    worst_difference: Estimate
    mean_difference: Estimate
    helps: bool


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

    @property
    def compares(self) -> bool:
        """Whether there were correct answers and questions enough to compare positions."""
        return self.reason not in ("too_few_questions", "cannot_answer")


# -- does it lose the middle? ---------------------------------------------------------------------


def loses_middle(
    recommendation: Recommendation, shape: Shape, curves: PositionCurves
) -> MiddleAnswer:
    """Whether the middle is lost: the answer to a report's title.

    Yes where the middle is significantly below both ends. No only where the interval excludes that
    it lies `smallest_effect` below the lower end.
    """
    if not recommendation.compares:
        return MiddleAnswer("unknown", f"Cannot tell. {recommendation.text}")
    curve, metric, questions = curves[BASELINE], curves.metric, curves.questions
    means = [estimate.value for estimate in curve.estimates]
    _, _, seen = SHAPES[shape.name].partition(": ")
    if shape.name != "flat":
        high, low = int(np.argmax(means)), int(np.argmin(means))
        seen += (
            f" (highest at position {curves.positions[high]}: {metric.shown(means[high])}; lowest "
            f"at position {curves.positions[low]}: {metric.shown(means[low])})"
        )
    if len(means) < 3:
        text = f"Cannot tell without a position between the first and the last: {seen}."
        return MiddleAnswer("unknown", text)
    margin = _margin(curve.gap, questions, metric)
    lost = min(means[0], means[-1]) - min(means[1:-1])
    if shape.name == "U" or lost > margin:
        return MiddleAnswer("yes", f"Yes: {seen}.")
    if lost + margin < smallest_effect(metric):
        return MiddleAnswer("no", f"No: {seen}.")
    return MiddleAnswer(
        "unknown",
        f"Cannot tell: the middle may lie {metric.amount(lost + margin)} below the ends. "
        f"{_needed(lost, margin, questions, metric)} Seen so far: {seen}.",
    )


def smallest_effect(metric: Metric) -> float:
    """The smallest difference that matters: 10 points, or an answer 1.5 times as likely."""
    return 0.1 if metric.share else log(1.5)


def _margin(gap: Estimate, questions: int, metric: Metric) -> float:
    """By how much the difference of any two positions may be off."""
    half = gap.value - gap.low
    # Where no question differs, resampling has no width, and this share of those not asked may.
    return max(half, 1 - (1 - CONFIDENCE) ** (1 / questions)) if metric.share else half


def _needed(value: float, margin: float, questions: int, metric: Metric) -> str:
    """How many questions would tell `value` from none, or from one that matters.

    The margin shrinks with the square root of their number.
    """
    distance = max(value, smallest_effect(metric) - value)
    needed = max(questions + 1, ceil(questions * (margin / distance) ** 2))
    return f"About {needed:,} questions would tell."


# -- which method --------------------------------------------------------------------------------


def comparisons(methods: int) -> str:
    """How differences of so many methods from the unmodified model are corrected."""
    text = "Differences from the unmodified model are paired over questions"
    if methods > 1:
        text += (
            f", and their intervals hold for all {methods} methods together with "
            f"{percent(CONFIDENCE)} confidence (Bonferroni: each has "
            f"{percent(comparison_confidence(methods), 2)})"
        )
    return f"{text}."


def too_few(questions: int) -> str:
    """What fewer than `MIN_QUESTIONS` questions show, as a sentence."""
    return (
        f"{counted(questions, 'question')} can show nothing about positions: at least "
        f"{MIN_QUESTIONS} are needed, and 100 to tell gaps of 10 to 20 points from chance."
    )


def recommend(
    scores: Mapping[str, Array],
    metric: Metric,
    answer_time_ratios: Mapping[str, float] | None = None,
) -> Recommendation:
    """Choose a method, or none.

    1. With fewer than `MIN_QUESTIONS` questions: none, nothing can be said.
    2. Where hardly anything is answered at any position: none, position is not the problem.
    3. Where the gap's interval of the unmodified model includes zero: none is needed.
    4. A method qualifies if its worst position gains significantly (the paired interval, adjusted
       for the number of methods tried: `comparison_confidence`, lies above zero) and its mean
       over positions is not lower.
    5. Of those, the one with the best worst position; of those as good within `Metric.tolerance`,
       the cheapest.

    Args:
        scores: by label, `[questions, positions]`, the same questions in the same order;
            ``"none"`` among them.
        metric: of the scores.
        answer_time_ratios: to ``none``, by label, where it was measured.
    """
    base, questions = scores[BASELINE], len(scores[BASELINE])
    if questions < MIN_QUESTIONS:
        text = too_few(questions)
        return Recommendation(label=BASELINE, reason="too_few_questions", text=text)
    tried = {label: own for label, own in scores.items() if label != BASELINE}
    of_each = comparison_confidence(len(tried))
    verdicts = tuple(verdict_on(label, base, own, of_each) for label, own in tried.items())

    def none(reason: Reason, text: str) -> Recommendation:
        return Recommendation(label=BASELINE, reason=reason, text=text, verdicts=verdicts)

    bootstrap = Bootstrap(base)
    gap, least = bootstrap.gap(), smallest_effect(metric)
    amount, most = metric.amount(gap.value), gap.value + _margin(gap, questions, metric)
    if metric.share and bootstrap.means.max() < _MIN_ACCURACY:
        return none(
            "cannot_answer",
            "The model answers hardly any question at any position of the gold document: position "
            "is not the problem. Look at the prompt, the template, the model or the data.",
        )
    if gap.includes_zero and most < least:
        least_amount = metric.amount(least)
        return none("no_gap", f"No method needed: no two positions differ by {least_amount}.")
    if gap.includes_zero:
        return none(
            "no_gap",
            f"No difference between positions is shown: {amount} was measured, and up to "
            f"{metric.amount(most)} is possible. "
            f"{_needed(gap.value, most - gap.value, questions, metric)}",
        )
    if not tried:
        return none(
            "nothing_tried",
            f"Positions differ by {amount}, which is statistically significant. Try methods.",
        )
    helping = {verdict.label: verdict for verdict in verdicts if verdict.helps}
    if not helping:
        return none(
            "no_help",
            f"Positions differ by {amount}, but no method that was tried raises the worst position "
            "significantly without lowering the mean.",
        )
    worst = {label: float(scores[label].mean(axis=0).min()) for label in helping}
    # A hair more than the tolerance: values exactly that far apart tie whatever the rounding.
    enough = max(worst.values()) - metric.tolerance * (1 + 1e-9)
    tied, ratios = [label for label in helping if worst[label] >= enough], answer_time_ratios or {}
    best = min(tied, key=lambda label: (ratios.get(label, float("inf")), -worst[label]))
    gains = helping[best]
    text = (
        f"Use {best}: worst position {_change(gains.worst_difference, metric)}, mean "
        f"{_change(gains.mean_difference, metric)}."
    )
    if best in ratios:
        text += f" An answer takes {ratios[best]:.2g} times as long."
    if len(tied) > 1:
        text += f" As good, and not cheaper: {', '.join(n for n in tied if n != best)}."
    return Recommendation(label=best, reason="helps", text=text, verdicts=verdicts)


def verdict_on(label: str, base: Array, own: Array, confidence: float) -> Verdict:
    """Whether a method helps.

    Args:
        label: of the method.
        base: scores of the unmodified model, `[questions, positions]`.
        own: of the method, likewise.
        confidence: of each interval.
    """
    if np.array_equal(own, base):
        return Verdict(label, NONE_SEEN, NONE_SEEN, helps=False)
    paired = Bootstrap(np.concatenate([base, own], axis=1))
    count = base.shape[1]
    worst = paired.least_gain(confidence)
    mean = paired.estimate(
        lambda means: np.mean(means[..., count:], -1) - np.mean(means[..., :count], -1), confidence
    )
    # Sums of the same scores in another order differ by rounding.
    return Verdict(label, worst, mean, helps=worst.low > 0 and mean.value >= -1e-9)


def _change(difference: Estimate, metric: Metric) -> str:
    sign = "+" if difference.value > 0 else ""
    noted = " (not significant)" if difference.includes_zero else ""
    return f"{sign}{metric.amount(difference.value)}{noted}".replace("-", "−")


# -- what to do now -------------------------------------------------------------------------------


def method_in_use(recommendation: Recommendation, curves: PositionCurves) -> str:
    """The method to use with documents that a retriever ranks.

    Returns:
        The one recommended, or none where the unmodified model at its best position, which the
        best-ranked document gets, does better than the method anywhere.
    """
    own, base = curves[recommendation.label], curves[BASELINE]
    best, unmodified = (max(e.value for e in curve.estimates) for curve in (own, base))
    better = not base.gap.includes_zero and unmodified > best + curves.metric.tolerance
    return BASELINE if better else recommendation.label


def order_advice(curve: PositionCurve, positions: Sequence[int], metric: Metric) -> str:
    """Where to put the most relevant documents, by the measured curve.

    Args:
        curve: of the method in use: advice for one method is none for another.
        positions: 0-based.

    Returns:
        A sentence; empty where no two positions of the curve differ significantly, as under an
        order-free method.
    """
    if curve.gap.includes_zero:
        return ""
    means = np.array([estimate.value for estimate in curve.estimates])
    by_score = np.argsort(-means, kind="stable")
    high = [int(index) for index in by_score if high_positions(means)[index]]
    low = int(np.argmin(means))
    named = sorted(positions[index] for index in high[:_MANY_POSITIONS])
    place = f"position {named[0]}" if len(named) == 1 else f"positions {listed(named)}"
    value = f"{'best: ' if len(named) > 1 else ''}{metric.shown(float(means[high[0]]))}"
    return (
        f"Put the most relevant documents at {place} ({value}), and none of them at position "
        f"{positions[low]} ({metric.shown(float(means[low]))}): it costs nothing."
    )


def next_steps(
    recommendation: Recommendation,
    advice: str,
    *,
    weights: bool = True,
    calibratable: Sequence[str] = (),
    crowded: bool = False,
    in_use: str | None = None,
) -> tuple[str, ...]:
    """What to do now, in sentences.

    Args:
        advice: of `order_advice`, for the method in use.
        weights: the model's weights are here.
        calibratable: methods with a search that may help.
        crowded: the gold document alone does significantly better.
        in_use: of `method_in_use`.
    """
    label, reason = recommendation.label, recommendation.reason
    if reason == "too_few_questions":
        return ("Ask 100 questions: --limit 100, the default, and as many in the file of --data.",)
    if reason == "cannot_answer":
        return (
            "Look at a few answers in records.jsonl: does the prompt suit the model? Try "
            "--template; or, where the model's weights are here, --score-by likelihood --metric "
            "log_likelihood, which shows differences in wrong answers too.",
        )
    steps = ["Ask with fewer documents, or put a reranker before the model."] if crowded else []
    steps += [advice] if advice else []
    if reason == "no_gap":
        return (*steps, "Measure again when model, prompt or data change.")
    if reason == "helps":
        steps.append(
            f"Check {label} on held-out questions before relying on it."
            if in_use in (None, label)
            else f"Where the ranking is poor, use {label} instead of an order."
        )
    if reason == "helps" and not weights:
        steps.append(f"Serve the model with it: `rag-middle serve --method {label}`.")
    elif not weights:
        steps.append(
            "Most methods need the model's weights: find one that helps with `--model` instead of "
            "`--endpoint`, and serve it (`rag-middle serve`, or vLLM with rag-middle-vllm)."
        )
    elif reason == "nothing_tried":
        steps.append("Name methods to try with --methods.")
    # Where a method helps and positions no longer differ, there is nothing left to gain.
    if calibratable and (reason != "helps" or advice):
        first, *others = calibratable
        alternatives = f" (or {', '.join(others)})" if others else ""
        steps.append(
            f"Calibrated parameters may do better: `rag-middle calibrate --method {first}`"
            f"{alternatives} with the same --model and --data; then run this again with "
            f"`--methods profile:rag-middle-calibration/{first}.json`."
        )
    return tuple(steps)


# -- what else is to be known ---------------------------------------------------------------------


def notes_on_gold(items: Sequence[Item]) -> tuple[str, ...]:
    """Warnings of gold documents that may not be what they are taken for."""

    def repeats_gold(item: Item) -> bool:
        """Whether another document holds all words of the gold one, in their order."""
        gold, *others = (
            f" {' '.join(document.text.split())} "
            for document in (item.gold, *item.others)
            if document
        )
        return any(gold in other for other in others)

    problems = (
        (
            "The gold document holds none of the answers",
            [i for i in items if i.gold and not best_subspan_em(i.gold.render(), i.answers)],
            "Where it does not answer its question, every method scores 0 at every position.",
        ),
        (
            "Another document repeats the gold one",
            list(filter(repeats_gold, items)),
            "An answer may be read there: positions then seem to differ less than they do.",
        ),
    )
    return tuple(
        f"{problem}, word for word, in {len(affected)} of {counted(len(items), 'question')}, such "
        f"as {shortened(repr(affected[0].question), 100)}. {meaning}"
        for problem, affected, meaning in problems
        if affected
    )


def notes(summary: Summary, shape: Shape) -> tuple[str, ...]:
    """What the controls say, and what else is to be known."""
    unmodified, texts = summary[BASELINE], []
    if unmodified.consistency is not None:
        share = percent(unmodified.consistency.changed.value)
        texts.append(f"The order of the documents changes the answers to {share} of the questions.")
    closed_book, gold_only = summary.control("closed_book"), summary.control("gold_only")
    if closed_book and closed_book.difference.high >= 0:  # else documents are read
        if closed_book.mean.value > 0:
            # With few questions no difference is significant: both values are told.
            shown = summary.metric.shown
            texts.append(
                "Without any documents the model does not do significantly worse "
                f"({shown(closed_book.mean.value)}, with them {shown(unmodified.mean.value)}): it "
                "may know the answers, and then nothing measures reading."
            )
        if gold_only and gold_only.mean.value <= closed_book.mean.value:
            texts.append(
                "With the gold document alone the model does no better than with none: it does not "
                "use the document at any position. No position method mends that."
            )
    if shape.confidence < 0.8:
        texts.append(
            f"The shape is uncertain: {percent(shape.confidence)} of the resampled curves have it. "
            "More questions make it clearer."
        )
    idle = [m.label for m in summary.methods if m.applied < 1 and m.label != BASELINE]
    if idle:
        texts.append(f"Some prompts left nothing to do for: {', '.join(idle)}.")
    return tuple(texts)
