"""LPES: the curve of factors over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example, ScoringScheme
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

    Fitness is 0.2, 0.3 and 0.5 times the accuracy with the answer at begin, in the middle and at
    the end, each question asked at all three. Accuracy is that of generated answers where the model
    has a chat template; elsewhere answers are read in one pass (`exact_match`), which is the same
    only where the model answers with nothing but the value.

    Operators are the paper's. What differs from it, and does not under `as_in_paper`, makes the
    search cheaper: no curve is scored twice, only the most promising of several children are
    scored, clear losers are dropped before they are asked everything, the search ends after five
    generations without a better curve, the likelihood of the answers decides between equal scores,
    and 30 questions are asked, not 200. ``lpes:paper`` is the paper's search, with its 200
    questions and 500 held-out ones.
    """

    method: ClassVar[str] = "lpes"
    criterion: ClassVar[Criterion] = "exact_match"
    weights: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.5)

    @property
    def questions(self) -> int:
        return 200 if self.as_in_paper else 30

    @property
    def held_out(self) -> int:
        return 500 if self.as_in_paper else 100

    def criterion_for(self, *, chat: bool) -> Criterion:
        return "generated_answer" if chat else self.criterion

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

        scheme = ScoringScheme.of(examples) if examples else None
        ranked = evolve(self, layers, seed, score, scheme)
        return Found(ranked=[(candidate(genome), outcome) for genome, outcome in ranked])
