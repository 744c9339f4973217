"""Give up on a candidate that is clearly worse, without having scored it on every example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rag_middle.errors import CalibrationConfigError

__all__ = ["UNSCORED", "Race", "chance_of"]

#: Stands in `Outcome.right` for an example that was not scored.
UNSCORED = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Whom a candidate must be as good as, and how sure a drop must be.

    What candidates did before says where candidates differ at all. A candidate is tried on those
    examples first, and given up once it can hardly be as good as the reference any more.

    The chance that it still is: an example is answered rightly as often as by the candidates
    before, by the rule of succession (one more of either verdict than was seen), independently of
    the others; where the reference is right, the candidate is supposed to be right too, which is
    to its favour. On all examples it would have been as good if the number of those that it
    answers and the reference does not makes up for what it lost.

    Attributes:
        reference: the verdict of the one to be as good as on every example, as in
            `Outcome.right`.
        known: verdicts of candidates that were scored on every example; the more, the sooner a
            drop. None are needed.
        risk: most that this chance may be where a candidate is dropped. With 0, only who cannot
            be as good whatever comes is.

    Raises:
        CalibrationConfigError: verdicts on different numbers of examples.
    """

    reference: str
    known: tuple[str, ...] = ()
    risk: float = 0.05

    def __post_init__(self) -> None:
        for verdicts in self.known:
            if len(verdicts) != len(self.reference):
                raise CalibrationConfigError(
                    f"A race compares verdicts on the same examples: the reference has "
                    f"{len(self.reference)}, a known candidate {len(verdicts)}."
                )

    @property
    def chances(self) -> tuple[float, ...]:
        """How likely the next candidate answers each example rightly."""
        rights = _rights(self.known, len(self.reference))
        return tuple((right + 1) / (len(self.known) + 2) for right in rights)

    @property
    def order(self) -> tuple[int, ...]:
        """0-based examples, those first on which candidates differ most."""
        rights, wholly = _rights(self.known, len(self.reference)), len(self.known)
        return tuple(sorted(self._examples, key=lambda i: abs(2 * rights[i] - wholly)))

    def expected(self, right: str) -> float:
        """The share of examples that a candidate will have answered rightly in the end.

        Args:
            right: as for `lost`.
        """
        of_each = [
            chance if ours == UNSCORED else float(ours)
            for chance, ours in zip(self.chances, right, strict=True)
        ]
        return sum(of_each) / len(of_each)

    def lost(self, right: str) -> bool:
        """Whether a candidate is given up.

        Args:
            right: its verdicts so far, `UNSCORED` where it was not tried.
        """
        tried = [i for i in self._examples if right[i] != UNSCORED]
        behind = sum((self.reference[i] == "1") - (right[i] == "1") for i in tried)
        if behind <= 0:
            return False
        gains = [
            chance
            for chance, theirs, ours in zip(self.chances, self.reference, right, strict=True)
            if ours == UNSCORED and theirs == "0"
        ]
        if behind > len(gains):
            return True
        return self.risk > 0 and chance_of(behind, gains) <= self.risk  # tiny chances round to 0

    @property
    def _examples(self) -> range:
        return range(len(self.reference))


@lru_cache(maxsize=8)  # asked for at every look of every candidate of a generation
def _rights(known: tuple[str, ...], examples: int) -> tuple[int, ...]:
    """How many of the known candidates answer each example rightly."""
    return tuple(sum(verdicts[i] == "1" for verdicts in known) for i in range(examples))


def chance_of(wanted: int, chances: Sequence[float]) -> float:
    """Chance that at least `wanted` of independent events happen, each with a chance of its own.

    The upper tail of the Poisson binomial distribution.
    """
    if wanted <= 0:
        return 1.0
    # by_count[k]: chance of exactly k events so far; the last one: of `wanted` or more.
    by_count = [1.0] + [0.0] * wanted
    for chance in chances:
        by_count[wanted] += by_count[wanted - 1] * chance
        for count in range(wanted - 1, 0, -1):
            by_count[count] += (by_count[count - 1] - by_count[count]) * chance
        by_count[0] *= 1 - chance
    return by_count[wanted]
