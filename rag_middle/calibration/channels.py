"""Positional hidden states: which channel, which factor, which layers (arXiv:2406.02536)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from rag_middle.attention import in_eval_mode
from rag_middle.attention.rotary import keep_frequencies
from rag_middle.attention.seam import parameters
from rag_middle.calibration.objective import Example
from rag_middle.calibration.search import (
    Candidate,
    Proposals,
    Search,
    SearchInputs,
    layer_ranges,
    num_layers,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import PositionalHiddenStates
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel, rank_channels
from rag_middle.methods.rules import INDICES, number, option, several, whole

_BEST = 4  # pairs of channel and factor that are tried in other layers
_SHALLOW = 8  # layers; below, leaving out three of them leaves too few to find a trend in


@dataclass(frozen=True, kw_only=True)
class ChannelSearch(Search):
    """Positional hidden states: algorithm 1 of arXiv:2406.02536.

    Candidates are the smoothest channels whose mean drifts along random texts. Models of fewer than
    8 layers are searched in all layers; else, as in the authors' code and not said in the paper,
    the first two and the last are left out. Candidates are compared by the mean log-likelihood of
    the answer over all positions of the gold document, with equal weights (equation 2 adds up its
    negative over all positions of each example): five positions, spread evenly, of 40 questions.

    Every channel is tried under every factor in the middle layers; the best of these pairs then in
    other layers. ``positional_hidden_states:paper`` fixes the layers and searches for the channel,
    then for its factor, on the paper's 100 examples. Under which factor channels are compared the
    paper leaves open: here the first of `factors`.

    Attributes:
        texts: random texts that hidden states are averaged over.
        tokens: of each text; fewer where the context window is shorter.
        top: channels that are tried.
        factors: that are tried.
        layers: 0-based, that are changed by every candidate; by default the middle ones, and for
            the best candidates others too.
        as_in_paper: layers are fixed, by default the middle ones; the channel is chosen first.
    """

    method: ClassVar[str] = "positional_hidden_states"

    texts: int = option(250, whole(1))
    tokens: int = option(1000, whole(20))
    top: int = option(10, whole(1))
    factors: tuple[float, ...] = option(
        (0.5, 0.0, -0.5, -1.0), several(number(), "numbers", at_least=1)
    )
    layers: tuple[int, ...] | None = option(None, INDICES)
    as_in_paper: bool = False

    @property
    def questions(self) -> int:
        return 100 if self.as_in_paper else 40

    def max_candidates(self, model: RagMiddleModel) -> int:
        pairs, others = self.top * len(self.factors), self._ranges(model)[1:]
        if self.as_in_paper:
            return self.top + len(self.factors) - 1
        return pairs + min(pairs, _BEST) * len(others)

    def propose(self, inputs: SearchInputs) -> Proposals:
        channels = self.found(inputs)
        middle, *others = self._ranges(inputs.model)
        factors = self.factors[:1] if self.as_in_paper else self.factors
        pairs = list(product((channel.channel for channel in channels), factors))
        outcomes = yield [_candidate(*pair, middle) for pair in pairs]
        by_score = sorted(zip(pairs, outcomes, strict=True), key=lambda p: p[1].score, reverse=True)
        ranked = [pair for pair, _ in by_score]
        if self.as_in_paper:
            yield [_candidate(ranked[0][0], f, middle) for f in self.factors] if ranked else []
        else:
            best = product(ranked[:_BEST], others)
            yield [_candidate(*pair, layers) for pair, layers in best]
        return {"channels": [asdict(channel) for channel in channels]}

    def found(self, inputs: SearchInputs) -> tuple[PositionalChannel, ...]:
        """The channels that are tried: the model reads random texts of the examples' documents."""
        if not inputs.examples:
            raise ConfigError(
                "The channel search reads the documents of examples: give some beside the "
                "objective."
            )
        model = inputs.model
        tokens = min(self.tokens, model.context_window or self.tokens)
        texts = random_texts(
            model, inputs.examples, count=self.texts, tokens=tokens, seed=inputs.seed
        )
        hidden = mean_hidden_states(model, texts, max_batch_size=inputs.max_batch_size)
        return self.channels(hidden)

    def channels(self, hidden: Tensor) -> tuple[PositionalChannel, ...]:
        """The candidates among the channels of mean hidden states `[layers, n, hidden]`."""
        return self.ranked(hidden)[: self.top]

    def ranked(self, hidden: Tensor, *, monotone: bool = True) -> tuple[PositionalChannel, ...]:
        """All channels that drift, the smoothest first; `monotone` as `rank_channels`."""
        skip = min(100, hidden.shape[1] // 10)
        layers = range(hidden.shape[0]) if hidden.shape[0] < _SHALLOW else None
        return rank_channels(
            hidden, skip_trend=skip, skip_smoothness=skip, layers=layers, monotone=monotone
        )

    def _ranges(self, model: RagMiddleModel) -> list[tuple[int, ...]]:
        """The layers of all candidates, and others that are tried with the best."""
        if self.layers:
            return [self.layers]
        ranges = layer_ranges(num_layers(model))
        return ranges[:1] if self.as_in_paper else ranges


def _candidate(channel: int, factor: float, layers: tuple[int, ...]) -> Candidate:
    return Candidate(
        f"channel {channel} x {factor:g} in layers {layers[0]}-{layers[-1]}",
        PositionalHiddenStates(channels=(channel,), factor=factor, layers=layers),
    )


def random_texts(
    model: RagMiddleModel, examples: Sequence[Example], *, count: int, tokens: int, seed: int
) -> Tensor:
    """Texts of documents in random order: ids `[count, tokens]`.

    Over many texts, content averages out, and what depends on a token's position is left.
    """
    texts = {doc.render(): None for example in examples for doc in example.prompt.documents}
    pieces = [model.token_ids(text + "\n\n") for text in texts]
    rng = random.Random(f"texts {seed}")
    rows = []
    for _ in range(count):
        row: list[int] = []
        while len(row) < tokens:
            row.extend(rng.choice(pieces))
        rows.append(row[:tokens])
    return torch.tensor(rows, device="cpu")


@torch.no_grad()
def mean_hidden_states(model: RagMiddleModel, texts: Tensor, *, max_batch_size: int = 8) -> Tensor:
    """Output of every decoder layer, averaged over texts: float32 `[layers, n, hidden]`.

    The last layer's comes as transformers returns it, for most models after the final norm.

    Args:
        model: left as it is found; its method is not used.
        texts: ids `[texts, n]`.
        max_batch_size: texts per forward pass.
    """
    inner, total = model.model, torch.zeros((), dtype=torch.float64, device="cpu")
    # Logits are not looked at, and those of every token cost a fifth of a small model's pass.
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters(type(inner).forward) else {}
    with in_eval_mode(inner), keep_frequencies(inner):
        for batch in texts.split(max_batch_size):
            read = inner(
                input_ids=batch.to(model.device),
                output_hidden_states=True,
                use_cache=False,
                **last_only,
            )
            # The first are embeddings; one layer at a time, as float64 copies of all are large.
            total = total + torch.stack([s.double().sum(0).cpu() for s in read.hidden_states[1:]])
    return total.div(len(texts)).float()
