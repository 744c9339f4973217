"""Scaling positional hidden states (arXiv:2406.02536, equation 3), projecting twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaivePositionalHiddenStates(NaiveLlama):
    """The last prompt rows and all generated ones attend with scaled queries to scaled keys."""

    channels: Sequence[int] = ()
    factor: float = 1.0
    changed_layers: Sequence[int] = ()
    last_tokens: int = 1
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
            for token in range(self.prompt_tokens - self.last_tokens, hidden.shape[0]):
                out[head, token] = attended[token]
        return out
