"""What every search is, and what several of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from rag_middle.attention import model_traits
from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method

__all__ = ["Found", "Search", "layer_ranges", "num_layers", "ranked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search leaves.

    Attributes:
        ranked: candidates that were scored completely, the best first.
        details: what else the search found out, JSON-ready, for the profile.
        hidden: mean hidden states `[layers, n, hidden]`, of the channel search.
    """

    ranked: Sequence[tuple[Candidate, Outcome]]
    details: dict[str, Any] = field(default_factory=dict)
    hidden: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """How the settings of one method are found.

    Class attributes:
        method: whose settings.
        criterion: what is compared by default.
        weights: of the places at which each question is asked, spread evenly from the first to
            the last; how many there are says how many places.
    """

    method: ClassVar[str]
    criterion: ClassVar[Criterion]
    weights: ClassVar[tuple[float, ...]] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def questions(self) -> int:
        """How many are asked by default."""
        return 40

    @property
    def held_out(self) -> int:
        """How many questions the result is checked on by default."""
        return 100

    def criterion_for(self, *, chat: bool) -> Criterion:
        """What is compared by default on a model that answers in turns of a chat, or does not."""
        return self.criterion

    @abstractmethod
    def most_candidates(self, model: RagMiddleModel) -> int:
        """How many candidates are scored at most; asked before anything is scored.

        Raises:
            CalibrationConfigError: settings that do not fit this model.
        """

    def like_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        """Methods that take as long as those that are tried, as many as are scored at a time.

        They are timed for the estimate. None where candidates take as long as the unmodified
        model.
        """
        return ()

    def tokens_read(self, model: RagMiddleModel) -> int:
        """Tokens that the model reads before candidates are known, beside the examples."""
        return 0

    @abstractmethod
    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        """Search.

        Args:
            model: that is fitted.
            examples: of the search; may be none where the objective has none.
            evaluator: scores candidates.
            seed: of what is drawn.
            max_batch_size: rows per forward pass of what is looked at besides.
        """

    def to_dict(self) -> dict[str, Any]:
        """Its settings, JSON-ready."""
        return {"method": self.method, **asdict(self)}


def num_layers(model: RagMiddleModel) -> int:
    """Decoder layers."""
    return model_traits(model.model).num_layers


def layer_ranges(num_layers: int) -> list[tuple[int, ...]]:
    """Middle layers (10 to 25 of 32, as in the papers), all from there on, upper half, all."""
    first, last = round(10 / 32 * num_layers), round(25 / 32 * num_layers)
    ranges = [
        range(first, max(first, min(last, num_layers - 1)) + 1),
        range(first, num_layers),
        range(num_layers // 2, num_layers),
        range(num_layers),
    ]
    return list(dict.fromkeys(tuple(each) for each in ranges))


def ranked(candidates: Sequence[Candidate], evaluator: Evaluator, *, together: int = 1) -> Found:
    """All candidates, scored, the best first; of equals, the one that was asked for first.

    Args:
        candidates: of the search.
        evaluator: scores them.
        together: see `Evaluator.outcomes`.
    """
    outcomes = evaluator.outcomes(candidates, together=together)
    pairs = list(zip(candidates, outcomes, strict=True))
    return Found(ranked=sorted(pairs, key=lambda pair: pair[1].score, reverse=True))
