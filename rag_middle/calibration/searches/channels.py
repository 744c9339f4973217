"""Positional hidden states: which channel, which factor, which layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from typing import ClassVar

from torch import Tensor

from rag_middle.attention import can_share_prompts, model_traits
from rag_middle.calibration.checks import require_numbers, require_whole
from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example
from rag_middle.calibration.hidden_states import mean_hidden_states, random_texts
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.searches.base import (
    Found,
    Search,
    layer_ranges,
    num_layers,
    ranked,
)
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, PositionalHiddenStates
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel, rank_channels

__all__ = ["ChannelSearch"]

_TOGETHER = 16  # candidates that share a reading of the prompts; a kill loses no more than these
_SHALLOW = 8  # layers; below, leaving out three of them leaves too few to find a trend in


@dataclass(frozen=True, kw_only=True)
class ChannelSearch(Search):
    """Positional hidden states: algorithm 1 of arXiv:2406.02536.

    Candidates are the smoothest channels whose mean drifts one way along random texts. Models of
    fewer than 8 layers are looked at in all layers; else, as in the authors' code and not said in
    the paper, the first two and the last are left out. They are compared by the mean loss of the
    answer over all places of the document that answers, which count alike (equation 2 adds it up
    over all positions of each example): five places, spread evenly, of 40 questions. The paper has
    100 examples.

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
        require_numbers(factors=self.factors)
        require_whole(1, texts=self.texts, top=self.top)
        require_whole(20, tokens=self.tokens)

    def most_candidates(self, model: RagMiddleModel) -> int:
        return self.top * len(self.factors) * len(layer_ranges(num_layers(model)))

    def like_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        together = _together(model)
        width = model_traits(model.model).hidden_size
        tried = product(range(min(self.top, width)), layer_ranges(num_layers(model)), self.factors)
        return [
            PositionalHiddenStates(channels=(channel,), factor=factor, layers=layers)
            for channel, layers, factor in islice(tried, together)
        ]

    def tokens_read(self, model: RagMiddleModel) -> int:
        return self.texts * self._tokens(model)

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
        texts = random_texts(
            model, examples, count=self.texts, tokens=self._tokens(model), seed=seed
        )
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
                channels, self.factors, layer_ranges(num_layers(model))
            )
        ]
        found = ranked(candidates, evaluator, together=_together(model))
        return Found(
            ranked=found.ranked,
            details={"channels": [asdict(channel) for channel in channels]},
            hidden=hidden,
        )

    def channels(self, hidden: Tensor) -> tuple[PositionalChannel, ...]:
        """The candidates among the channels of mean hidden states `[layers, n, hidden]`."""
        skip = min(100, hidden.shape[1] // 10)
        layers = range(hidden.shape[0]) if hidden.shape[0] < _SHALLOW else None
        found = rank_channels(hidden, skip_trend=skip, skip_smoothness=skip, layers=layers)
        return found[: self.top]

    def _tokens(self, model: RagMiddleModel) -> int:
        return min(self.tokens, model.context_window or self.tokens)


def _together(model: RagMiddleModel) -> int:
    """Candidates that are scored at a time.

    They differ in what the last tokens attend to: what is before is read once, where it can be.
    """
    return _TOGETHER if can_share_prompts(model.model) else 1
