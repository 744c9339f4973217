"""The search of each method: which settings are tried, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from rag_middle.attention import model_traits
from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example
from rag_middle.calibration.genetic import CurveSearch, Genome, evolve
from rag_middle.calibration.hidden_states import mean_hidden_states, random_texts
from rag_middle.calibration.objective import Criterion, Outcome
from rag_middle.calibration.racing import Race
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.runner import ModelRunner
from rag_middle.generation.tokenizing import LockedTokenizer
from rag_middle.methods import LPES, SIW, MsPoE, PositionalHiddenStates
from rag_middle.ops.areas import document_density
from rag_middle.ops.positional_channels import PositionalChannel, rank_channels

__all__ = [
    "SEARCHES",
    "ChannelSearch",
    "Found",
    "InitialTokenSearch",
    "LayerSearch",
    "RatioSearch",
    "Search",
    "layer_ranges",
]

_SHALLOW = 8  # layers; below, leaving out three of them leaves too few to find a trend in


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
    """

    method: ClassVar[str]
    criterion: ClassVar[Criterion]

    @abstractmethod
    def most_candidates(self, model: RagMiddleModel) -> int:
        """How many candidates are scored at most."""

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


def _ranked(candidates: Sequence[Candidate], evaluator: Evaluator) -> Found:
    outcomes = evaluator.outcomes(candidates)
    pairs = list(zip(candidates, outcomes, strict=True))
    return Found(ranked=sorted(pairs, key=lambda pair: pair[1].score, reverse=True))


def _several(name: str, values: Sequence[Any]) -> None:
    if not values:
        raise CalibrationConfigError(f"{name} must hold at least one value.")


@dataclass(frozen=True, kw_only=True)
class ChannelSearch(Search):
    """Positional hidden states: algorithm 1 of arXiv:2406.02536.

    Candidates are the smoothest channels whose mean drifts one way along random texts. Models of
    fewer than 8 layers are looked at in all layers; else, as in the paper, the first two and the
    last are left out.

    Attributes:
        texts: random texts that hidden states are averaged over.
        tokens: of each text; fewer where the model's window is shorter.
        top: channels that are tried.
        factors: that are tried.
    """

    method: ClassVar[str] = "positional_hidden_states"
    criterion: ClassVar[Criterion] = "log_likelihood"

    texts: int = 250
    tokens: int = 1000
    top: int = 10
    factors: tuple[float, ...] = (0.5, 0.0, -0.5, -1.0)

    def __post_init__(self) -> None:
        _several("factors", self.factors)
        if min(self.texts, self.top) < 1 or self.tokens < 20:
            raise CalibrationConfigError(
                f"texts and top must be >= 1 and tokens >= 20, got {self.texts}, {self.top} and "
                f"{self.tokens}."
            )

    def most_candidates(self, model: RagMiddleModel) -> int:
        return self.top * len(self.factors) * len(layer_ranges(_num_layers(model)))

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        if not examples:
            raise CalibrationConfigError(
                "The channel search reads the documents of examples: give some beside the "
                "objective."
            )
        tokens = min(self.tokens, model.context_window or self.tokens)
        texts = random_texts(model, examples, count=self.texts, tokens=tokens, seed=seed)
        hidden = mean_hidden_states(model, texts, max_batch_size=max_batch_size)
        channels = self.channels(hidden)
        if not channels:
            return Found(ranked=[], details={"channels": []}, hidden=hidden)
        candidates = [
            Candidate(
                f"channel {channel.channel} x {factor:g} in layers {layers[0]}-{layers[-1]}",
                PositionalHiddenStates(channels=(channel.channel,), factor=factor, layers=layers),
            )
            for channel, factor, layers in product(
                channels, self.factors, layer_ranges(_num_layers(model))
            )
        ]
        found = _ranked(candidates, evaluator)
        return Found(
            ranked=found.ranked,
            details={"channels": [asdict(channel) for channel in channels]},
            hidden=hidden,
        )

    def channels(self, hidden: Tensor) -> tuple[PositionalChannel, ...]:
        """The candidates among the channels of mean hidden states `[layers, n, hidden]`."""
        skip = min(100, hidden.shape[1] // 10)
        layers = range(hidden.shape[0]) if hidden.shape[0] < _SHALLOW else None
        ranked = rank_channels(hidden, skip_trend=skip, skip_smoothness=skip, layers=layers)
        return ranked[: self.top]


@dataclass(frozen=True, kw_only=True)
class LayerSearch(CurveSearch, Search):
    """LPES: a genetic search for the curve of factors; settings are those of `CurveSearch`.

    Differs from the paper: no curve is scored twice, clear losers are dropped before they are
    scored on every example, and the likelihood of the answers decides between equal scores.
    """

    method: ClassVar[str] = "lpes"
    criterion: ClassVar[Criterion] = "exact_match"

    def most_candidates(self, model: RagMiddleModel) -> int:
        return self.most_curves

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        layers = _num_layers(model)

        def candidate(genome: Genome) -> Candidate:
            factors = self.factors(genome, layers)
            points = [[x, y / 10] for x, y in genome]
            key = " ".join(f"{factor:g}" for factor in factors)
            return Candidate(key, LPES(factors=factors), {"control_points": points})

        def score(genomes: Sequence[Genome], race: Race | None) -> list[Outcome]:
            return evaluator.outcomes([candidate(genome) for genome in genomes], race)

        ranked = evolve(self, layers, seed, score)
        return Found(ranked=[(candidate(genome), outcome) for genome, outcome in ranked])


@dataclass(frozen=True, kw_only=True)
class InitialTokenSearch(Search):
    """SIW: dense and sparse areas per layer from the examples, factors and layers by trial.

    Attributes:
        areas: parts that a prompt's documents are cut into; each is dense where documents in it
            get more than their share of attended tokens, on average over the examples.
        dense: factors of dense areas that are tried.
        sparse: factors of sparse areas that are tried.
        top_share: share of tokens that count as attended to.
    """

    method: ClassVar[str] = "siw"
    criterion: ClassVar[Criterion] = "log_likelihood"

    areas: int = 5
    dense: tuple[float, ...] = (0.5, 0.7, 0.9, 1.0)
    sparse: tuple[float, ...] = (1.0, 1.1, 1.3, 1.5)
    top_share: float = 0.3

    def __post_init__(self) -> None:
        _several("dense", self.dense)
        _several("sparse", self.sparse)
        if self.areas < 1:
            raise CalibrationConfigError(f"areas must be >= 1, got {self.areas}.")

    def most_candidates(self, model: RagMiddleModel) -> int:
        neutral = 1.0 in self.dense and 1.0 in self.sparse
        alphas = len(self.dense) * len(self.sparse) - neutral
        return alphas * len(layer_ranges(_num_layers(model)))

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        if not examples:
            raise CalibrationConfigError(
                "Areas are found on examples: give some beside the objective."
            )
        flags = self.dense_areas(model, examples)
        candidates = []
        for dense, sparse, layers in product(
            self.dense, self.sparse, layer_ranges(_num_layers(model))
        ):
            chosen = {layer: flags[layer] for layer in layers if layer in flags}
            if chosen and (dense, sparse) != (1.0, 1.0):
                method = SIW(
                    alpha_dense=dense,
                    alpha_sparse=sparse,
                    dense_areas=chosen,
                    top_share=self.top_share,
                )
                key = f"dense x {dense:g}, sparse x {sparse:g} in layers {layers[0]}-{layers[-1]}"
                candidates.append(Candidate(key, method))
        found = _ranked(candidates, evaluator)
        return Found(
            ranked=found.ranked,
            details={"dense_areas": {str(layer): list(each) for layer, each in flags.items()}},
        )

    def dense_areas(
        self, model: RagMiddleModel, examples: Sequence[Example]
    ) -> dict[int, tuple[bool, ...]]:
        """For every layer with softmax attention, which areas are dense."""
        traits = model_traits(model.model)
        runner = ModelRunner(model.model, LockedTokenizer(model.tokenizer), self.method)
        layers = sorted(traits.layers)
        excess = torch.zeros(len(layers), self.areas, dtype=torch.float64)
        for example in examples:
            prompt = model.encode(example.prompt)
            count = len(prompt.layout.documents)
            attention = runner.last_token_attention(prompt).mean(dim=1)  # [layers, l]
            area = torch.tensor([int((i + 0.5) / count * self.areas) for i in range(count)])
            for row, of_layer in enumerate(attention):
                density = document_density(of_layer, prompt.layout, self.top_share)
                excess[row].index_add_(0, area, density.double().cpu())
        return {
            layer: tuple(bool(each > 0) for each in excess[row]) for row, layer in enumerate(layers)
        }


@dataclass(frozen=True, kw_only=True)
class RatioSearch(Search):
    """Ms-PoE: ratio ranges and first layers, under the paper's head rule and the authors' code's.

    Attributes:
        ranges: ``(min_ratio, max_ratio)`` that are tried.
        first_layers: that are tried; those a model does not have are left out.
        head_rules: ``"rank"``: the paper's text, ``"code"``: the authors' code.
    """

    method: ClassVar[str] = "ms_poe"
    criterion: ClassVar[Criterion] = "log_likelihood"

    ranges: tuple[tuple[float, float], ...] = (
        (1.0, 1.2),
        (1.0, 1.5),
        (1.0, 1.8),
        (1.0, 2.0),
        (1.2, 1.5),
        (1.2, 1.8),
        (1.2, 2.2),
        (1.5, 2.0),
    )
    first_layers: tuple[int, ...] = (0, 1, 2, 4, 8)
    head_rules: tuple[str, ...] = ("rank", "code")

    def __post_init__(self) -> None:
        for name in ("ranges", "first_layers", "head_rules"):
            _several(name, getattr(self, name))
        strange = [rule for rule in self.head_rules if rule not in ("rank", "code")]
        if strange:
            raise CalibrationConfigError(f"head_rules are 'rank' and 'code', got {strange[0]!r}.")

    def most_candidates(self, model: RagMiddleModel) -> int:
        return len(self.ranges) * len(self._firsts(model)) * len(self.head_rules)

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
        candidates = [
            Candidate(
                f"{low:g}-{high:g} from layer {first}, {rule}",
                MsPoE(
                    min_ratio=low,
                    max_ratio=high,
                    first_layer=first,
                    reference_code=rule == "code",
                ),
            )
            for (low, high), first, rule in product(
                self.ranges, self._firsts(model), self.head_rules
            )
        ]
        return _ranked(candidates, evaluator)

    def _firsts(self, model: RagMiddleModel) -> list[int]:
        found = [first for first in self.first_layers if first < _num_layers(model)]
        if not found:
            raise CalibrationConfigError(
                f"first_layers {list(self.first_layers)} are beyond the model's "
                f"{_num_layers(model)} layers."
            )
        return found


SEARCHES: dict[str, type[Search]] = {
    kind.method: kind for kind in (ChannelSearch, LayerSearch, InitialTokenSearch, RatioSearch)
}


def _num_layers(model: RagMiddleModel) -> int:
    return model_traits(model.model).num_layers
