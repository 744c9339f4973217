"""Which method to use, if any: decided by the numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rag_middle.evaluation.measurement import BASELINE
from rag_middle.evaluation.metrics import Metric
from rag_middle.evaluation.statistics import CONFIDENCE, RESAMPLES, Estimate, Resampled

__all__ = ["LEAST_QUESTIONS", "Recommendation", "Verdict", "recommend"]

Reason = Literal[
    "too_few_questions", "cannot_answer", "no_gap", "nothing_tried", "no_help", "helps"
]

LEAST_QUESTIONS = 20
_HARDLY_ANY = 0.05  # of the answers right: position is not what stands in the way

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What speaks for and against one method.

    Attributes:
        label: of the method.
        worst_difference: worst place under the method minus worst place without, paired over
            questions, in the direction in which more is better. The interval's level is adjusted
            for the number of methods tried (Bonferroni).
        mean_difference: the same for the mean over places.
        helps: the worst place gains for certain, and the mean does not fall.
        why: in words.
    """

    label: str
    worst_difference: Estimate
    mean_difference: Estimate
    helps: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.label,
            "worst_difference": self.worst_difference.to_dict(),
            "mean_difference": self.mean_difference.to_dict(),
            "helps": self.helps,
            "why": self.why,
        }


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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "use": self.label,
            "reason": self.reason,
            "text": self.text,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
        }


def recommend(
    scores: Mapping[str, Array],
    metric: Metric,
    costs: Mapping[str, float | None] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Recommendation:
    """Choose a method, or none.

    1. With fewer than `LEAST_QUESTIONS` questions: none, nothing can be said.
    2. Where hardly anything is answered at any place: none, position is not the problem.
    3. Where the gap's interval of the unmodified model includes zero: none is needed.
    4. A method qualifies if its worst place gains (the paired interval, adjusted for the number of
       methods tried, lies above zero) and its mean over places is not lower.
    5. Of those, the one with the best worst place; of those as good within `Metric.alike`, the
       cheapest.

    Args:
        scores: by label, `[questions, places]`, the same questions in the same order; ``"none"``
            among them.
        metric: of the scores.
        costs: time per answer as a ratio to ``none``, by label, where it was measured.
        resamples: for the intervals.
        seed: of the resamples.
    """
    sign = 1.0 if metric.higher_is_better else -1.0
    oriented = {label: sign * np.asarray(each) for label, each in scores.items()}
    base = oriented[BASELINE]
    questions = len(base)
    if questions < LEAST_QUESTIONS:
        return _none(
            "too_few_questions",
            f"{questions} questions say nothing about positions: ask at least "
            f"{LEAST_QUESTIONS}, better a hundred or more.",
        )
    tried = [label for label in oriented if label != BASELINE]
    level = 1 - (1 - CONFIDENCE) / max(1, len(tried))
    verdicts = tuple(
        _verdict(label, base, oriented[label], level, metric, resamples, seed) for label in tried
    )
    drawn = Resampled(base, resamples=resamples, seed=seed)
    gap = drawn.gap()
    if metric.share and metric.higher_is_better and drawn.means.max() < _HARDLY_ANY:
        return _none(
            "cannot_answer",
            "The model answers hardly any question wherever the document stands: position is not "
            "what stands in the way. Look at the prompt, the template, the model or the data.",
            verdicts,
        )
    if gap.includes_zero:
        return _none(
            "no_gap",
            f"No method needed: the places differ by {_amount(gap.value, metric)}, which chance "
            f"explains (with these {questions} questions, a difference below "
            f"{_amount(gap.value - gap.low, metric)} goes unseen).",
            verdicts,
        )
    if not tried:
        return _none(
            "nothing_tried",
            f"The places differ by {_amount(gap.value, metric)}, more than chance explains. Try "
            "methods.",
        )
    helping = [verdict.label for verdict in verdicts if verdict.helps]
    if not helping:
        return _none(
            "no_help",
            f"The places differ by {_amount(gap.value, metric)}, but no method that was tried "
            "raises the worst place for certain without lowering the mean.",
            verdicts,
        )
    worst = {label: float(oriented[label].mean(axis=0).min()) for label in helping}
    best = max(worst.values())
    # A hair more than `alike`, so that values exactly that far apart tie whatever the rounding.
    tied = [label for label in helping if best - worst[label] <= metric.alike * (1 + 1e-9)]
    known = costs or {}
    chosen = min(tied, key=lambda each: (_cost(known.get(each)), -worst[each]))
    [verdict] = [each for each in verdicts if each.label == chosen]
    cost = known.get(chosen)
    price = "" if cost is None else f" It takes {cost:.2g} times the time of an answer."
    rivals = [label for label in tied if label != chosen]
    as_good = f" As good, and not cheaper: {', '.join(rivals)}." if rivals else ""
    return Recommendation(
        label=chosen,
        reason="helps",
        text=f"Use {chosen}: {verdict.why}.{price}{as_good}",
        verdicts=verdicts,
    )


def _verdict(
    label: str, base: Array, own: Array, level: float, metric: Metric, resamples: int, seed: int
) -> Verdict:
    places = base.shape[1]
    drawn = Resampled(np.concatenate([base, own], axis=1), resamples=resamples, seed=seed)
    worst = drawn.estimate(
        lambda m: np.asarray(m[..., places:].min(-1) - m[..., :places].min(-1)), level
    )
    mean = drawn.estimate(
        lambda m: np.asarray(m[..., places:].mean(-1) - m[..., :places].mean(-1)), level
    )
    # Sums of the same scores in another order differ by rounding.
    lowers = mean.value < -1e-9
    if worst.low <= 0:
        why = "no certain gain at the worst place"
        if worst.high < 0:
            why = f"the worst place loses {_amount(-worst.value, metric)}"
    elif lowers:
        why = f"the worst place gains, but the mean falls by {_amount(-mean.value, metric)}"
    else:
        why = (
            f"the worst place gains {_amount(worst.value, metric)}, the mean "
            f"{_amount(mean.value, metric)}"
        )
    return Verdict(
        label=label,
        worst_difference=worst,
        mean_difference=mean,
        helps=worst.low > 0 and not lowers,
        why=why,
    )


def _none(reason: Reason, text: str, verdicts: tuple[Verdict, ...] = ()) -> Recommendation:
    return Recommendation(label=BASELINE, reason=reason, text=text, verdicts=verdicts)


def _cost(ratio: float | None) -> float:
    return float("inf") if ratio is None else ratio


def _amount(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} points" if metric.share else f"{value:.2f}"
