"""LPES: the curve of factors over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example
from rag_middle.calibration.genetic import CurveSearch, Genome, evolve
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.calibration.searches.base import Found, Search, num_layers
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, Method

__all__ = ["LayerSearch"]


@dataclass(frozen=True, kw_only=True)
class LayerSearch(CurveSearch, Search):
    """LPES: a genetic search for the curve of factors; settings are those of `CurveSearch`.

    Differs from the paper: no curve is scored twice, only the most promising of several children
    are scored, clear losers are dropped before they are scored on every example, and the likelihood
    of the answers decides between equal scores.
    """

    method: ClassVar[str] = "lpes"
    criterion: ClassVar[Criterion] = "exact_match"

    def most_candidates(self, model: RagMiddleModel) -> int:
        self.require_layers(num_layers(model))
        return self.most_curves

    def like_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        return [LPES(factors=1.5)]

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        layers = num_layers(model)

        def candidate(genome: Genome) -> Candidate:
            factors = self.factors(genome, layers)
            points = [[x, y / 10] for x, y in genome]
            key = " ".join(f"{factor:g}" for factor in factors)
            return Candidate(key, LPES(factors=factors), {"control_points": points})

        def score(genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
            return evaluator.outcomes([candidate(genome) for genome in genomes], race)

        ranked = evolve(self, layers, seed, score)
        return Found(ranked=[(candidate(genome), outcome) for genome, outcome in ranked])
