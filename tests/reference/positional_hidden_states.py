"""Positional hidden states (arXiv:2406.02536): scaling one, projecting twice, and finding one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaivePositionalHiddenStates(NaiveLlama):
    """The last prompt rows and all generated ones attend with scaled queries to scaled keys."""

    channels: Sequence[int] = ()
    factor: float = 1.0
    changed_layers: Sequence[int] = ()
    last_tokens: int | None = 1
    scale_values: bool = False
    skip_first: int = 0

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        plain = super().attention(layer, hidden)
        if layer not in self.changed_layers:
            return plain
        scaled_hidden = hidden.clone()
        for channel in self.channels:
            scaled_hidden[:, channel] = self.factor * hidden[:, channel]
        _, k, v = self.project(layer, hidden)
        q, scaled_k, scaled_v = self.project(layer, scaled_hidden)
        for token in range(self.skip_first, hidden.shape[0]):
            k[:, token] = scaled_k[:, token]
            if self.scale_values:
                v[:, token] = scaled_v[:, token]
        positions = torch.arange(hidden.shape[0])
        out = plain.clone()
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys = self.rotated(k[self.group(head)], positions)
            attended = self.weights_of(queries, keys) @ v[self.group(head)]
            first = 0 if self.last_tokens is None else self.prompt_tokens - self.last_tokens
            for token in range(first, hidden.shape[0]):
                out[head, token] = attended[token]
        return out


def naive_trend(values: np.ndarray, skip: int) -> int:
    """Whether the cubic that fits the values after `skip` positions best rises (1) or falls (-1).

    The rule of the authors' code, one channel at a time: scale to [0, 1], fit, compare the fitted
    values of neighbouring positions; equal neighbours break neither trend. Theirs fits in float32,
    where the differences of a flat part drown in rounding; this one fits in float64.
    """
    values = values[skip:].astype(np.float64)
    span = values.max() - values.min()
    if span == 0:
        return 0  # theirs divides by zero
    x = np.linspace(-1, 1, len(values))
    fitted = np.polyval(np.polyfit(x, (values - values.min()) / span, 3), x)
    steps = [later - earlier for earlier, later in pairwise(fitted)]
    noise = 1e-10  # what float64 leaves of a difference that is zero
    if all(abs(step) <= noise for step in steps):
        return 0
    if all(step >= -noise for step in steps):
        return 1
    return -1 if all(step <= noise for step in steps) else 0
