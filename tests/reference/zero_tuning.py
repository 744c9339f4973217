"""ZeroTuning (arXiv:2505.11739): the matrix of weights, one column scaled, rows summed again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveZeroTuning(NaiveLlama):
    """Attributes:
    factors: by layer, then by head; layers and heads that are not named stay as they are.
    """

    factors: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        out = []
        for head in range(self.heads):
            keys = self.rotated(k[self.group(head)], positions)
            weights = self.weights_of(self.rotated(q[head], positions), keys)
            weights[:, 0] *= self.factors.get(layer, {}).get(head, 1.0)
            out.append(weights / weights.sum(-1, keepdim=True) @ v[self.group(head)])
        return torch.stack(out)
