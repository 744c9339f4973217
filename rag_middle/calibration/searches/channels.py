"""Positional hidden states: which channel, which factor, which layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from typing import ClassVar

from torch import Tensor

from rag_middle.attention import can_share_prompts, model_traits
from rag_middle.calibration.evaluator import Candidate
from rag_middle.calibration.hidden_states import mean_hidden_states, random_texts
from rag_middle.calibration.objective import Criterion
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
from rag_middle.methods import Method, PositionalHiddenStates
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel, rank_channels

_GROUP_SIZE = 16  # candidates that share a prefill; a kill loses no more than these
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
        return self.top * len(self.factors) * len(layer_ranges(num_layers(model)))

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        channels = range(min(self.top, model_traits(model.model).hidden_size))
        settings = product(channels, layer_ranges(num_layers(model)), self.factors)
        return [
            PositionalHiddenStates(channels=(channel,), factor=factor, layers=layers)
            for channel, layers, factor in islice(settings, _group_size(model))
        ]

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
        candidates = [
            Candidate(
                f"channel {channel.channel} x {factor:g} in layers {layers[0]}-{layers[-1]}",
                PositionalHiddenStates(channels=(channel.channel,), factor=factor, layers=layers),
            )
            for channel, factor, layers in product(
                channels, self.factors, layer_ranges(num_layers(model))
            )
        ]
        return SearchResult(
            ranked=rank(candidates, inputs.evaluator, group_size=_group_size(model)),
            details={"channels": [asdict(channel) for channel in channels]},
            hidden=hidden,
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


def _group_size(model: RagMiddleModel) -> int:
    """Candidates that are scored at a time.

    They change what the last tokens attend to: the prefill before these is shared, where it can be.
    """
    return _GROUP_SIZE if can_share_prompts(model.model) else 1
