"""MoICE (arXiv:2406.19598) with one whole attention matrix per head and rotary base."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveMoICE(NaiveLlama):
    """Outputs of several bases, mixed per token and head.

    Attributes:
        factors: of the base, one per expert.
        routers: by layer, weights ``W1 [E, d]``, ``W2 [E, E]`` and ``W3 [E, d]``; none: equal
            parts.
        top_k: experts kept.
    """

    factors: tuple[float, ...] = (1.0,)
    routers: Mapping[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    top_k: int = 1

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0])
        own, out = self.theta, []
        for head in range(self.heads):
            values, mixed = v[self.group(head)], torch.zeros(hidden.shape[0], self.head_size)
            attended, first = [], None
            for factor in self.factors:
                self.theta = own * factor
                queries = self.rotated(q[head], positions)
                keys = self.rotated(k[self.group(head)], positions)
                attended.append(self.weights_of(queries, keys) @ values)
                first = queries if first is None else first
            self.theta = own
            for token in range(hidden.shape[0]):
                for expert, share in self.shares(layer, first[token]).items():
                    mixed[token] += share * attended[expert][token]
            out.append(mixed)
        return torch.stack(out)

    def shares(self, layer: int, x: Tensor) -> dict[int, float]:
        """What a token takes of each expert that it keeps."""
        if not self.routers:
            return dict.fromkeys(range(len(self.factors)), 1 / len(self.factors))
        w1, w2, w3 = self.routers[layer]
        gate = w1 @ x
        scores = (w2 @ (gate * torch.sigmoid(gate) * (w3 @ x))).softmax(0).tolist()
        kept = sorted(range(len(scores)), key=lambda expert: -scores[expert])[: self.top_k]
        total = sum(scores[expert] for expert in kept)
        return {expert: scores[expert] / total for expert in kept}
