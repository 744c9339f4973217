"""ZeroTuning: heads that gain from more attention to the initial token, and their factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from rag_middle.attention import model_traits
from rag_middle.calibration.evaluator import Candidate
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    rank,
    require_numbers,
)
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, ZeroTuning

__all__ = ["HeadSearch"]


@dataclass(frozen=True, kw_only=True)
class HeadSearch(Search):
    """ZeroTuning: every head is tried alone, then factors of the best heads, the worst, and all.

    A head is changed in all layers at once, as in the authors' code. Those that do best with more
    attention to the initial token are up-effective, those that do worst down-effective. How many
    heads of either kind the paper takes has not been checked: several shares are tried.

    Attributes:
        trial: factor under which heads are told apart.
        shares: shares of the heads that are taken from either end.
        factors: of the heads taken.
    """

    method: ClassVar[str] = "zero_tuning"
    criterion: ClassVar[Criterion] = "log_likelihood"

    trial: float = 2.0
    shares: tuple[float, ...] = (0.2, 0.4)
    factors: tuple[float, ...] = (0.4, 0.6, 0.8, 1.25, 1.6, 2.5)

    def __post_init__(self) -> None:
        require_numbers(shares=self.shares, factors=self.factors)
        for share in self.shares:
            if not 0 < share < 1:
                raise CalibrationConfigError(f"shares must lie between 0 and 1, got {share}.")
        for factor in (self.trial, *self.factors):  # refused now, not after an hour
            if ZeroTuning(factor=factor).is_neutral:
                raise CalibrationConfigError("A factor of 1 changes nothing: leave it out.")

    def max_candidates(self, model: RagMiddleModel) -> int:
        return _num_heads(model) + (2 * len(self.shares) + 1) * len(self.factors)

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        return [ZeroTuning(factor=self.trial)]

    def run(self, inputs: SearchInputs) -> SearchResult:
        alone = [
            Candidate(f"head {head} x {self.trial:g}", ZeroTuning(factor=self.trial, heads=(head,)))
            for head in range(_num_heads(inputs.model))
        ]
        tried = rank(alone, inputs.evaluator)
        order = [alone.index(candidate) for candidate, _ in tried]  # the best first
        groups: dict[tuple[int, ...] | None, str] = {None: "all heads"}
        for share in self.shares:
            count = max(1, round(share * len(order)))
            groups[tuple(sorted(order[:count]))] = f"{count} up-effective"
            groups[tuple(sorted(order[-count:]))] = f"{count} down-effective"
        together = [
            Candidate(f"{name} x {factor:g}", ZeroTuning(factor=factor, heads=heads))
            for (heads, name), factor in product(groups.items(), self.factors)
        ]
        ranked = sorted(
            [*rank(together, inputs.evaluator), *tried],
            key=lambda pair: pair[1].score,
            reverse=True,
        )
        scores = {candidate.key: outcome.score for candidate, outcome in tried}
        return SearchResult(
            ranked=ranked, details={"heads": [scores[candidate.key] for candidate in alone]}
        )


def _num_heads(model: RagMiddleModel) -> int:
    """Query heads that every layer has."""
    layers = model_traits(model.model).layers.values()
    if not layers:
        raise CalibrationConfigError("None of this model's layers has heads that can be reached.")
    return min(layer.heads for layer in layers)
