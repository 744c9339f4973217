"""What every search is, and what several of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar

from rag_middle.attention import model_traits
from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.scoring import Candidate, Evaluator
from rag_middle.errors import ConfigError
from rag_middle.evaluation.candidates import CALIBRATED
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method
from rag_middle.plain_data import is_finite_number, is_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInputs:
    """What a search runs on.

    Attributes:
        examples: may be none where the objective is the user's own.
        max_batch_size: rows per forward pass of what is not scoring.
    """

    model: RagMiddleModel
    examples: Sequence[Example]
    evaluator: Evaluator
    seed: int = 0
    max_batch_size: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        ranked: candidates, the best first.
        details: what else the search found out, JSON-ready, for the profile.
    """

    ranked: Sequence[tuple[Candidate, Outcome]]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """How the settings of one method are found.

    Class attributes:
        method: whose settings.
        criterion: what is compared by default.
        weights: of the positions at which each question is asked, spread evenly from the first to
            the last, one position per weight.
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
        """How many held-out questions the result is checked on by default."""
        return 100

    def criterion_for(self, *, chat: bool) -> Criterion:
        """What is compared by default on a model that answers as a chat, or does not."""
        return self.criterion

    @abstractmethod
    def max_candidates(self, model: RagMiddleModel) -> int:
        """How many candidates are scored at most; asked before anything is scored.

        Raises:
            ConfigError: settings that do not fit this model.
        """

    def costly_method(self, model: RagMiddleModel) -> Method:
        """A candidate that takes as long as any, to be timed for the estimate."""
        return CALIBRATED[self.method]

    def preparation_tokens(self, model: RagMiddleModel) -> int:
        """Tokens that the model reads before the candidates are known, apart from the examples."""
        return 0

    @abstractmethod
    def run(self, inputs: SearchInputs) -> SearchResult:
        """Search."""

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
    return list(dict.fromkeys(tuple(layers) for layers in ranges))


def rank(candidates: Sequence[Candidate], evaluator: Evaluator) -> list[tuple[Candidate, Outcome]]:
    """All candidates, scored, the best first; among equals, the one that was asked for first."""
    pairs = list(zip(candidates, evaluator.outcomes(candidates), strict=True))
    return sorted(pairs, key=lambda pair: pair[1].score, reverse=True)


def require_whole(least: int, **values: Any) -> None:
    """Raise ConfigError unless all are whole numbers of at least `least`."""
    for name, value in values.items():
        if not is_whole(value, least):
            raise ConfigError(f"{name} must be a whole number >= {least}, got {value!r}.")


def require_numbers(least: int | None = None, **values: Any) -> None:
    """Raise ConfigError unless all are lists of numbers, not empty; of whole ones from `least`."""
    is_number = is_finite_number if least is None else partial(is_whole, least=least)
    kind = "number" if least is None else f"whole number >= {least}"
    for name, numbers in values.items():
        if not isinstance(numbers, list | tuple) or not numbers or not all(map(is_number, numbers)):
            raise ConfigError(f"{name} must be a list of at least one {kind}, got {numbers!r}.")
