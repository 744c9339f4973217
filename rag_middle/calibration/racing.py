"""Give up on a candidate that is clearly worse, without having scored it on every example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb

__all__ = ["Race", "ended", "sign_test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Whom a candidate must be as good as, and how sure a drop must be.

    Attributes:
        reference: the verdict of the one to beat on every example, as in `Outcome.right`.
        risk: most that the chance may be of dropping a candidate that, scored on all examples,
            would have been as good.
        shares: of the examples after which a candidate may be dropped, rising.
    """

    reference: str
    risk: float = 0.05
    shares: tuple[float, ...] = (0.125, 0.25, 0.5)

    def stages(self, count: int) -> tuple[int, ...]:
        """Numbers of examples after which to look, the last one being all."""
        looks = {ceil(share * count) for share in self.shares}
        return (*sorted(look for look in looks if 0 < look < count), count)


def ended(race: Race, right: str) -> bool:
    """Whether a candidate is dropped after its verdicts `right` on the first examples.

    Two reasons. It could not be as good even with all other examples right: certain. Or a sign
    test says so, over the examples on which candidate and reference differ. The examples are
    drawn without replacement from those of the search, so that under the hypothesis that the
    candidate is at least as good on all of them, the number on which it is the better one is
    hypergeometric, whose lower tail is below that of the binomial distribution that is used. The
    risk is shared between the looks, so the chance of a wrong drop stays below `Race.risk`.
    """
    left = len(race.reference) - len(right)
    if right.count("1") + left < race.reference.count("1"):
        return True
    pairs = list(zip(right, race.reference, strict=False))
    better, worse = pairs.count(("1", "0")), pairs.count(("0", "1"))
    looks = len(race.stages(len(race.reference))) - 1
    return worse > better and sign_test(better, better + worse) <= race.risk / looks


@lru_cache(maxsize=4096)
def sign_test(better: int, differing: int) -> float:
    """Chance that a fair coin shows at most `better` heads in `differing` throws."""
    return float(sum(comb(differing, k) for k in range(better + 1)) / 2**differing)
