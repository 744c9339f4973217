"""What every search is: a generator that proposes candidates and is told their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from rag_middle.attention import model_traits
from rag_middle.calibration.objective import Criterion, Example, Outcome
from rag_middle.evaluation.diagnosis import CALIBRATED
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try.

    Attributes:
        key: short description of the settings; equal settings have equal keys.
        method: with these settings.
        details: for the trace in the profile.
    """

    key: str
    method: Method
    details: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


#: Yields candidates, is sent an outcome for each, and returns what else it found out, JSON-ready.
Proposals: TypeAlias = Generator[Sequence[Candidate], Sequence[Outcome], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInputs:
    """What a search runs on.

    Attributes:
        examples: may be none where the objective is the user's own.
        template: that examples are asked with, as in generation.
        max_batch_size: rows per forward pass of what is not scoring.
    """

    model: RagMiddleModel
    examples: Sequence[Example] = ()
    seed: int = 0
    max_batch_size: int = 8
    template: TemplateName = "auto"


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """How the settings of one method are found; its fields are the search's own settings.

    Class attributes:
        method: whose settings.
        criterion: what is compared by default.
        weights: of the positions at which each question is asked, spread evenly from the first to
            the last, one position per weight.

    Raises:
        MethodConfigError: a setting that breaks its rule (`rag_middle.methods.rules`).
    """

    method: ClassVar[str]
    criterion: ClassVar[Criterion] = "log_likelihood"
    weights: ClassVar[tuple[float, ...]] = (1.0, 1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, rule = getattr(self, setting.name), setting.metadata.get("rule")
            if rule is not None and not (value is None and setting.default is None):
                checked = rule(f"{type(self).__name__}: {setting.name}", value)
                object.__setattr__(self, setting.name, checked)

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

    def fitness(self, outcome: Outcome) -> tuple[float, ...]:
        """By which the best candidate is chosen; of equals, the one that was proposed first."""
        return (outcome.score,)

    @abstractmethod
    def max_candidates(self, model: RagMiddleModel) -> int:
        """How many candidates are scored at most; asked before anything is scored.

        Raises:
            ConfigError: settings that do not fit this model.
        """

    def costly_method(self, model: RagMiddleModel) -> Method:
        """A candidate that takes as long as any, to be timed for the estimate."""
        return CALIBRATED[self.method]

    @abstractmethod
    def propose(self, inputs: SearchInputs) -> Proposals:
        """Search.

        Raises:
            ConfigError: settings that do not fit the model or the examples.
        """

    def to_dict(self) -> dict[str, Any]:
        """Its settings, JSON-ready."""
        return {"method": self.method, **asdict(self)}


def drive(
    proposals: Proposals, score: Callable[[Sequence[Candidate]], Sequence[Outcome]]
) -> tuple[list[tuple[Candidate, Outcome]], dict[str, Any]]:
    """Score what a search proposes until it has nothing more to propose.

    Returns:
        Each candidate with its outcome, in the order of the first proposal of each, and what else
        the search found out.
    """
    scored: dict[str, tuple[Candidate, Outcome]] = {}
    try:
        candidates = next(proposals)
        while True:
            outcomes = score(candidates)
            for candidate, outcome in zip(candidates, outcomes, strict=True):
                scored.setdefault(candidate.key, (candidate, outcome))
            candidates = proposals.send(outcomes)
    except StopIteration as end:
        return list(scored.values()), end.value


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
