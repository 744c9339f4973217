"""Give up on a candidate that is clearly worse, without having scored it on every example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rag_middle.calibration.examples import ScoringScheme
from rag_middle.errors import CalibrationConfigError

__all__ = ["UNSCORED", "Race", "chance_of"]

#: Stands in `Outcome.right` for an example that was not scored.
UNSCORED = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Whom a candidate must be as good as, and how sure a drop must be.

    What candidates did before says where candidates differ at all. A candidate is tried on those
    examples first, and given up once it can hardly be as good as the reference any more.

    The chance that it still is: a prompt is answered rightly as often as by the candidates before,
    by the rule of succession (one more of either verdict than was seen). Questions are independent
    of each other; the prompts of one question, with its answer at several places, are as dependent
    as can be, which drops rarely: who answers one answers all that are more often answered. Where
    the reference is right, the candidate is supposed to be right too, which is to its favour. On
    all prompts it would have been as good if what it answers and the reference does not makes up,
    by weight, for what it lost.

    Attributes:
        reference: the verdict of the one to be as good as on every prompt, as in `Outcome.right`.
        known: verdicts of candidates that were scored on every prompt; the more, the sooner a
            drop. None are needed.
        risk: most that this chance may be where a candidate is dropped. With 0, only who cannot
            be as good whatever comes is.
        scheme: which prompts belong together, and their weights; by default each is a question.

    Raises:
        CalibrationConfigError: verdicts on different numbers of prompts.
    """

    reference: str
    known: tuple[str, ...] = ()
    risk: float = 0.05
    scheme: ScoringScheme | None = None

    def __post_init__(self) -> None:
        count = len(self.reference)
        for verdicts in self.known:
            if len(verdicts) != count:
                raise CalibrationConfigError(
                    f"A race compares verdicts on the same examples: the reference has "
                    f"{count}, a known candidate {len(verdicts)}."
                )
        if self.scheme is None:
            object.__setattr__(self, "scheme", ScoringScheme.alone(count))
        elif len(self.scheme.weights) != count:
            raise CalibrationConfigError(
                f"A race compares verdicts on the same examples: the reference has {count}, the "
                f"scoring scheme {len(self.scheme.weights)}."
            )

    @property
    def chances(self) -> tuple[float, ...]:
        """How likely the next candidate answers each example rightly."""
        rights = _rights(self.known, len(self.reference))
        return tuple((right + 1) / (len(self.known) + 2) for right in rights)

    @property
    def order(self) -> tuple[int, ...]:
        """0-based prompts, those of one question together, and those first that tell most.

        These are the questions on whose places candidates differ most.
        """
        rights, wholly = _rights(self.known, len(self.reference)), len(self.known)
        agreed: dict[int, int] = {}
        for right, question, weight in zip(rights, self._questions, self._weights, strict=True):
            agreed[question] = agreed.get(question, 0) + weight * abs(2 * right - wholly)
        return tuple(
            sorted(
                range(len(self.reference)),
                key=lambda i: (agreed[self._questions[i]], self._questions[i]),
            )
        )

    def expected(self, right: str) -> float:
        """The score that a candidate will have in the end.

        Args:
            right: as for `lost`.
        """
        of_each = [
            weight * (chance if ours == UNSCORED else float(ours))
            for weight, chance, ours in zip(self._weights, self.chances, right, strict=True)
        ]
        return sum(of_each) / sum(self._weights)

    def lost(self, right: str) -> bool:
        """Whether a candidate is given up.

        Args:
            right: its verdicts so far, `UNSCORED` where it was not tried.
        """
        behind, chances = 0, self.chances
        gains: dict[int, list[tuple[float, int]]] = {}
        for index, (theirs, ours) in enumerate(zip(self.reference, right, strict=True)):
            weight = self._weights[index]
            if ours != UNSCORED:
                behind += weight * ((theirs == "1") - (ours == "1"))
            elif theirs == "0":
                gain = (chances[index], weight)
                gains.setdefault(self._questions[index], []).append(gain)
        if behind <= 0:
            return False
        if behind > sum(weight for gain in gains.values() for _, weight in gain):
            return True
        # Without a risk, tiny chances that round to 0 still count.
        return self.risk > 0 and chance_of(behind, list(gains.values())) <= self.risk

    @property
    def _questions(self) -> tuple[int, ...]:
        assert self.scheme is not None  # set when made
        return self.scheme.questions

    @property
    def _weights(self) -> tuple[int, ...]:
        assert self.scheme is not None  # set when made
        return self.scheme.weights


@lru_cache(maxsize=8)  # asked for at every look of every candidate of a generation
def _rights(known: tuple[str, ...], examples: int) -> tuple[int, ...]:
    """How many of the known candidates answer each prompt rightly."""
    return tuple(sum(verdicts[i] == "1" for verdicts in known) for i in range(examples))


def chance_of(wanted: int, questions: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Chance that the prompts that are answered weigh at least `wanted` together.

    Questions are independent. Of one question, a prompt is answered wherever a less likely one is.

    Args:
        wanted: whole number.
        questions: of each prompt of each question, its chance and its weight.
    """
    if wanted <= 0:
        return 1.0
    # by_sum[k]: chance of exactly k so far; the last one: of `wanted` or more.
    by_sum = np.zeros(wanted + 1)
    by_sum[0] = 1.0
    for prompts in questions:
        likeliest_first = sorted(prompts, reverse=True)
        chances = [chance for chance, _ in likeliest_first]
        after = by_sum * (1 - chances[0])
        gain = 0
        for (chance, weight), next_chance in zip(likeliest_first, [*chances[1:], 0.0], strict=True):
            gain = min(gain + weight, wanted)
            exactly = chance - next_chance
            after[gain:wanted] += exactly * by_sum[: wanted - gain]
            after[wanted] += exactly * by_sum[wanted - gain :].sum()
        by_sum = after
    return float(by_sum[wanted])
