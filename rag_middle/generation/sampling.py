"""Drawing tokens with random numbers of our own."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor
from transformers import LogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

__all__ = ["Sampler"]


class Sampler(LogitsProcessor):
    """Draws each row's next token and leaves only that one possible.

    Greedy generation then takes it. Every row has its own source of random numbers, one number per
    token: the text of a seed does not depend on the rest of the batch, on the device's generator,
    on other threads, and the global generators are neither read nor moved.

    Args:
        seeds: one per row.
        temperature: above 0; logits are divided by it.
        top_k: likeliest tokens to draw from; 0 for all.
        top_p: probability of the likeliest tokens to draw from.
    """

    def __init__(
        self, seeds: Sequence[int], *, temperature: float, top_k: int, top_p: float
    ) -> None:
        self._sources = [Random(seed) for seed in seeds]
        self._temperature = temperature
        self._warpers: list[LogitsProcessor] = []
        if top_k > 0:
            self._warpers.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            self._warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[b, v]` logits to `[b, v]` with 0 for the drawn tokens and -inf elsewhere."""
        # Centred first: a tiny temperature must not turn the largest logit into infinity. One that
        # this number format rounds to 0 would make it no number, and a huge one all logits equal.
        temperature = min(max(self._temperature, torch.finfo(scores.dtype).tiny), 1e30)
        scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        drawn = self._draw(scores)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn[:, None], 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        """Token ids `[b]`, by inverting the cumulative distribution."""
        # float64: over a large vocabulary, float32 sums would lose the rare tokens.
        wide = torch.float32 if scores.device.type == "mps" else torch.float64
        cumulative = scores.to(wide).softmax(dim=-1).cumsum(dim=-1)
        total = cumulative[:, -1:]
        uniform = torch.tensor(
            [[source.random()] for source in self._sources], dtype=wide, device=scores.device
        )
        below_total = torch.nextafter(total, torch.zeros_like(total))
        # The first token whose cumulative probability exceeds the number: never an impossible one.
        number = torch.minimum(uniform * total, below_total)
        found = torch.searchsorted(cumulative, number, right=True)[:, 0]
        return found.clamp(max=scores.shape[1] - 1)  # logits that are not numbers
