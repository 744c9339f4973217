"""Ms-PoE (arXiv:2403.04797, section 3.2), from the paper's text.

The paper has no grouped-query model: there, heads that share a key share a ratio, ranked by their
mean awareness.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveMsPoE(NaiveLlama):
    """Head of rank ``i`` divides positions by ``min + (i - 1)(max - min) / (n - 1)``."""

    min_ratio: float = 1.2
    max_ratio: float = 1.8
    first_layer: int = 2
    threshold: float = 3.0
    sequential: bool = False
    by_entropy: bool = False

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        if layer < self.first_layer:
            return super().attention(layer, hidden)
        q, k, v = self.project(layer, hidden)
        ratios = self.ratios(q, k)
        positions = torch.arange(hidden.shape[0])
        out = []
        for head in range(self.heads):
            group = self.group(head)
            queries = self.rotated(q[head], positions / ratios[group])
            keys = self.rotated(k[group], positions / ratios[group])
            out.append(self.weights_of(queries, keys) @ v[group])
        return torch.stack(out)

    def ratios(self, q: Tensor, k: Tensor) -> list[float]:
        """The ratio of every key/value head."""
        awareness = []
        for group in range(self.kv_heads):
            mine = [
                self.awareness(q[h], k[group]) for h in range(self.heads) if self.group(h) == group
            ]
            awareness.append(sum(mine) / len(mine))
        steps = max(1, self.kv_heads - 1)
        ratios = []
        for group in range(self.kv_heads):
            rank = group
            if not self.sequential:
                # How many are more aware; among equals the earlier head comes first.
                rank = sum(
                    awareness[other] > awareness[group]
                    or (awareness[other] == awareness[group] and other < group)
                    for other in range(self.kv_heads)
                )
            ratios.append(self.min_ratio + rank * (self.max_ratio - self.min_ratio) / steps)
        return ratios

    def awareness(self, queries: Tensor, keys: Tensor) -> float:
        """Share of prompt tokens with at least `threshold` times the mean attention of the last."""
        last = queries[self.prompt_tokens - 1]
        scores = torch.stack([last @ key for key in keys[: self.prompt_tokens]])
        attention = (scores / self.head_size**0.5).softmax(0)
        if self.by_entropy:
            return -sum(float(a * a.log()) for a in attention)
        return sum(float(a >= self.threshold * attention.mean()) for a in attention) / len(
            attention
        )
