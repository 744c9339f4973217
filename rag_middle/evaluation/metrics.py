"""How an answer is scored, and which direction is better."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from rag_middle.errors import UnknownNameError
from rag_middle.registry import suggest

__all__ = [
    "ANSWER_METRICS",
    "METRICS",
    "Metric",
    "answer_stated",
    "best_subspan_em",
    "exact_match",
    "f1",
    "metric",
    "normalized",
]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A score of one answer.

    Attributes:
        name: in records and options.
        title: in tables and on axes.
        higher_is_better: its direction.
        low: least possible value.
        high: largest possible value.
        alike: values closer than this count as a tie.
        share: it lies between 0 and 1 and is shown in per cent.
    """

    name: str
    title: str
    higher_is_better: bool = True
    low: float = 0.0
    high: float = 1.0
    alike: float = 0.01
    share: bool = True

    def oriented(self, value: float) -> float:
        """`value` with higher being better."""
        return value if self.higher_is_better else -value


METRICS = {
    each.name: each
    for each in (
        Metric(name="answer_stated", title="Right answers"),
        Metric(name="best_subspan_em", title="Accuracy (answer contained)"),
        Metric(name="exact_match", title="Exact match"),
        Metric(name="f1", title="F1 of words"),
        Metric(name="greedy_match", title="Accuracy (greedy answer)"),
        Metric(
            name="log_likelihood",
            title="Log-likelihood of the answer (nats)",
            low=-inf,
            high=0.0,
            share=False,
        ),
        Metric(name="choice_accuracy", title="Accuracy (choice)"),
        Metric(name="order_accuracy", title="Accuracy (places in order)"),
        Metric(name="judged_right", title="Accuracy (judgement)"),
    )
}


def metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UnknownNameError: there is none, with the nearest name.
    """
    if name not in METRICS:
        raise UnknownNameError(
            f"Unknown metric {name!r}.{suggest(name, METRICS)} Metrics: {', '.join(METRICS)}."
        )
    return METRICS[name]


def normalized(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces."""
    without = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(without.split())


def best_subspan_em(prediction: str, answers: Sequence[str]) -> float:
    """1 where any answer stands in the prediction, both normalised, else 0.

    The score of the Lost in the Middle benchmark (arXiv:2307.03172). An answer that is nothing
    once normalised ("The") is compared as it is.
    """
    said = normalized(prediction)
    return float(any(normalized(a) in said if normalized(a) else a in prediction for a in answers))


def answer_stated(prediction: str, answers: Sequence[str]) -> float:
    """1 where any answer stands in the prediction as a whole, upper and lower case alike, else 0.

    Stricter than `best_subspan_em`, for answers that are names and numbers: neither "12 days" nor
    "2 days-long" states "2 days", and "4.5" does not state "5".
    """
    said = " ".join(prediction.split())
    return float(any(_whole(answer).search(said) for answer in answers if answer.strip()))


def _whole(answer: str) -> re.Pattern[str]:
    # A sign between word characters belongs to them: 4.5, 725-5315, 10:30.
    words = re.escape(" ".join(answer.split()))
    return re.compile(rf"(?<!\w)(?<!\w[.,:-]){words}(?!\w|[.,:-]\w)", re.IGNORECASE)


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the prediction is an answer, both normalised, else 0."""
    said = normalized(prediction)
    return float(any(normalized(answer) == said for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, both normalised; best over the answers."""
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    said, wanted = normalized(prediction).split(), normalized(answer).split()
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


#: Scores of a generated answer against all right ones.
ANSWER_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    each.__name__: each for each in (answer_stated, best_subspan_em, exact_match, f1)
}
