"""Positional hidden states: which channel, which factor, which layers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import ClassVar

from torch import Tensor

from rag_middle.calibration.hidden_states import mean_hidden_states, random_texts
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.scoring import Candidate
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    layer_ranges,
    num_layers,
    rank,
    require_numbers,
    require_whole,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import PositionalHiddenStates
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel, rank_channels

_BEST = 4  # pairs of channel and factor that are tried in other layers
_SHALLOW = 8  # layers; below, leaving out three of them leaves too few to find a trend in


@dataclass(frozen=True, kw_only=True)
class ChannelSearch(Search):
    """Positional hidden states: algorithm 1 of arXiv:2406.02536.

    Candidates are the smoothest channels whose mean drifts one way along random texts. Models of
    fewer than 8 layers are searched in all layers; else, as in the authors' code and not said in
    the paper, the first two and the last are left out. Candidates are compared by the mean
    log-likelihood of the answer over all positions of the gold document, with equal weights
    (equation 2 adds up its negative over all positions of each example): five positions, spread
    evenly, of 40 questions. The paper has 100 examples.

    Every channel is tried under every factor in the middle layers, as in the paper; the best of
    these pairs then in other layers.

    Attributes:
        texts: random texts that hidden states are averaged over.
        tokens: of each text; fewer where the context window is shorter.
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
        require_numbers(factors=self.factors)
        require_whole(1, texts=self.texts, top=self.top)
        require_whole(20, tokens=self.tokens)

    def max_candidates(self, model: RagMiddleModel) -> int:
        pairs, ranges = self.top * len(self.factors), layer_ranges(num_layers(model))
        return pairs + min(pairs, _BEST) * (len(ranges) - 1)

    def preparation_tokens(self, model: RagMiddleModel) -> int:
        return self.texts * self._text_length(model)

    def run(self, inputs: SearchInputs) -> SearchResult:
        model = inputs.model
        if not inputs.examples:
            raise ConfigError(
                "The channel search reads the documents of examples: give some beside the "
                "objective."
            )
        texts = random_texts(
            model,
            inputs.examples,
            count=self.texts,
            tokens=self._text_length(model),
            seed=inputs.seed,
        )
        hidden = mean_hidden_states(model, texts, max_batch_size=inputs.max_batch_size)
        channels = self.channels(hidden)
        middle, *others = layer_ranges(num_layers(model))
        pairs = list(product((channel.channel for channel in channels), self.factors))
        alone = [_candidate(*pair, middle) for pair in pairs]
        ranked = [candidate for candidate, _ in rank(alone, inputs.evaluator)]
        elsewhere = [
            _candidate(*pairs[alone.index(candidate)], layers)
            for candidate in ranked[:_BEST]
            for layers in others
        ]
        return SearchResult(
            ranked=rank(ranked + elsewhere, inputs.evaluator),
            details={"channels": [asdict(channel) for channel in channels]},
        )

    def channels(self, hidden: Tensor) -> tuple[PositionalChannel, ...]:
        """The candidates among the channels of mean hidden states `[layers, n, hidden]`."""
        return self.ranked(hidden)[: self.top]

    def ranked(self, hidden: Tensor, *, monotone: bool = True) -> tuple[PositionalChannel, ...]:
        """All channels that drift one way, the smoothest first; `monotone` as `rank_channels`."""
        skip = min(100, hidden.shape[1] // 10)
        layers = range(hidden.shape[0]) if hidden.shape[0] < _SHALLOW else None
        return rank_channels(
            hidden, skip_trend=skip, skip_smoothness=skip, layers=layers, monotone=monotone
        )

    def _text_length(self, model: RagMiddleModel) -> int:
        return min(self.tokens, model.context_window or self.tokens)


def _candidate(channel: int, factor: float, layers: tuple[int, ...]) -> Candidate:
    return Candidate(
        f"channel {channel} x {factor:g} in layers {layers[0]}-{layers[-1]}",
        PositionalHiddenStates(channels=(channel,), factor=factor, layers=layers),
    )
