"""One document's mask, positions or attention perturbed (arXiv:2406.02536, appendix C), by row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveCroppedMask(NaiveLlama):
    """In some layers a span's tokens see the first token and the span up to themselves."""

    span: tuple[int, int] = (0, 0)
    changed_layers: Sequence[int] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        out = super().attention(layer, hidden)
        if layer not in self.changed_layers:
            return out
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys, values = self.rotated(k[self.group(head)], positions), v[self.group(head)]
            for token in range(*self.span):
                seen = sorted({0, *range(self.span[0], token + 1)})
                scores = keys[seen] @ queries[token] / self.head_size**0.5
                out[head, token] = scores.softmax(0) @ values[seen]
        return out


@dataclass
class NaiveMovedPositions(NaiveLlama):
    """The last prompt token and generated ones see a span's keys at other positions."""

    span: tuple[int, int] = (0, 0)
    target: int = 0

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        out = super().attention(layer, hidden)
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        moved = positions.clone()
        for offset, token in enumerate(range(*self.span)):
            moved[token] = self.target + offset
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys, values = self.rotated(k[self.group(head)], moved), v[self.group(head)]
            for token in range(self.prompt_tokens - 1, hidden.shape[0]):
                scores = keys[: token + 1] @ queries[token] / self.head_size**0.5
                out[head, token] = scores.softmax(0) @ values[: token + 1]
        return out


@dataclass
class NaiveDoubledAttention(NaiveLlama):
    """The last prompt token and generated ones weigh a span `factor` times as much."""

    span: tuple[int, int] = (0, 0)
    factor: float = 2.0
    renormalise: bool = False
    changed_layers: Sequence[int] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        out = super().attention(layer, hidden)
        if layer not in self.changed_layers:
            return out
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            weights = self.weights_of(queries, self.rotated(k[self.group(head)], positions))
            for token in range(self.prompt_tokens - 1, hidden.shape[0]):
                row = weights[token].tolist()
                row = [
                    w * (self.factor if j in range(*self.span) else 1) for j, w in enumerate(row)
                ]
                total = sum(row) if self.renormalise else 1.0
                values = v[self.group(head)]
                out[head, token] = sum(w / total * values[j] for j, w in enumerate(row))
        return out
