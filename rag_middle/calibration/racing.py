"""Give up on a candidate that is clearly worse, without having scored it on every example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rag_middle.calibration.examples import ScoringScheme
from rag_middle.errors import ConfigError

#: Stands in `Outcome.right` for an example that was not scored.
UNSCORED = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The candidate to be as good as, and the risk of dropping one that is.

    A candidate is scored first on the examples on which earlier candidates differed most, and
    dropped once the probability that it ends as good as the reference is at most `risk`.

    That probability is estimated from earlier candidates: a prompt is answered rightly as often as
    by them, by the rule of succession (one more of either verdict than was seen). Questions are
    independent. The prompts of one question, with its gold document at several positions, are fully
    dependent, which drops rarely: who answers one answers all that are more often answered. Where
    the reference is right, the candidate is assumed to be right too. It ends as good if the
    prompts that it answers and the reference does not make up, by weight, for those it lost.

    Attributes:
        reference: verdicts of the candidate to be as good as, as in `Outcome.right`.
        earlier: verdicts of candidates that were scored on every prompt; the more, the sooner a
            drop. May be empty.
        risk: highest probability at which a candidate is dropped. With 0, only those that cannot
            be as good are.
        scheme: which prompts ask the same question, and their weights; by default each prompt is
            a question of its own.

    Raises:
        ConfigError: verdicts on different numbers of prompts.
    """

    reference: str
    earlier: tuple[str, ...] = ()
    risk: float = 0.05
    scheme: ScoringScheme | None = None

    def __post_init__(self) -> None:
        lengths = [("an earlier candidate", len(verdicts)) for verdicts in self.earlier]
        if self.scheme is not None:
            lengths.append(("the scoring scheme", len(self.scheme.weights)))
        for name, length in lengths:
            if length != len(self.reference):
                raise ConfigError(
                    "A race compares verdicts on the same examples: the reference has "
                    f"{len(self.reference)}, {name} {length}."
                )

    @property
    def probabilities(self) -> tuple[float, ...]:
        """How likely the next candidate answers each prompt rightly."""
        rights = _right_counts(self.earlier, len(self.reference))
        return tuple((right + 1) / (len(self.earlier) + 2) for right in rights)

    @property
    def order(self) -> tuple[int, ...]:
        """0-based prompts, question by question, those first on which candidates differ most."""
        scheme = self._scheme
        agreement = dict.fromkeys(scheme.questions, 0)
        rights = _right_counts(self.earlier, len(self.reference))
        for right, question, weight in zip(rights, scheme.questions, scheme.weights, strict=True):
            agreement[question] += weight * abs(2 * right - len(self.earlier))
        questions = scheme.questions
        return tuple(
            sorted(range(len(questions)), key=lambda i: (agreement[questions[i]], questions[i]))
        )

    def expected_score(self, right: str) -> float:
        """The score that a candidate is expected to end with.

        Args:
            right: as for `is_lost`.
        """
        weights = self._scheme.weights
        expected = [
            weight * (probability if verdict == UNSCORED else float(verdict))
            for weight, probability, verdict in zip(weights, self.probabilities, right, strict=True)
        ]
        return sum(expected) / sum(weights)

    def is_lost(self, right: str) -> bool:
        """Whether a candidate is given up.

        Args:
            right: its verdicts so far, `UNSCORED` where it was not scored.
        """
        scheme, probabilities = self._scheme, self.probabilities
        behind = 0
        gains: dict[int, list[tuple[float, int]]] = {}  # by question: (probability, weight)
        for index, (theirs, ours) in enumerate(zip(self.reference, right, strict=True)):
            weight = scheme.weights[index]
            if ours != UNSCORED:
                behind += weight * ((theirs == "1") - (ours == "1"))
            elif theirs == "0":
                gain = (probabilities[index], weight)
                gains.setdefault(scheme.questions[index], []).append(gain)
        if behind <= 0:
            return False
        if behind > sum(weight for gain in gains.values() for _, weight in gain):
            return True
        # Without a risk, tiny probabilities that round to 0 still count.
        return self.risk > 0 and tail_probability(behind, list(gains.values())) <= self.risk

    @property
    def _scheme(self) -> ScoringScheme:
        return self.scheme or ScoringScheme.of_single_prompts(len(self.reference))


@lru_cache(maxsize=8)  # computed after every batch of every candidate of a generation
def _right_counts(candidates: tuple[str, ...], examples: int) -> tuple[int, ...]:
    """How many candidates answer each prompt rightly."""
    return tuple(sum(verdicts[i] == "1" for verdicts in candidates) for i in range(examples))


def tail_probability(least: int, questions: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Probability that the prompts that are answered weigh at least `least` together.

    Questions are independent. Within a question, a prompt is answered wherever a less likely one
    is.

    Args:
        least: whole number.
        questions: for each question, the probability and weight of each of its prompts.
    """
    if least <= 0:
        return 1.0
    # by_sum[k]: probability of exactly k so far; the last one: of `least` or more.
    by_sum = np.zeros(least + 1)
    by_sum[0] = 1.0
    for prompts in questions:
        likeliest_first = sorted(prompts, reverse=True)
        probabilities = [probability for probability, _ in likeliest_first]
        after = by_sum * (1 - probabilities[0])
        gain = 0
        for (probability, weight), next_probability in zip(
            likeliest_first, [*probabilities[1:], 0.0], strict=True
        ):
            gain = min(gain + weight, least)
            exactly = probability - next_probability
            after[gain:least] += exactly * by_sum[: least - gain]
            after[least] += exactly * by_sum[least - gain :].sum()
        by_sum = after
    return float(by_sum[least])
