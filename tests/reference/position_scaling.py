"""Position Interpolation (arXiv:2306.15595) and LPES (arXiv:2606.27705): positions divided by s."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaivePositionScaling(NaiveLlama):
    """Layer ``x`` rotates by ``m / s_x``; one ``s`` for all layers is Position Interpolation."""

    scales: Sequence[float] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        positions = torch.arange(hidden.shape[0]) / self.scales[layer]
        out = []
        for head in range(self.heads):
            queries = self.rotated(q[head], positions)
            keys = self.rotated(k[self.group(head)], positions)
            out.append(self.weights_of(queries, keys) @ v[self.group(head)])
        return torch.stack(out)


def bezier_by_sampling(
    points: Sequence[tuple[float, float]], layers: int, samples: int = 200_001
) -> list[float]:
    """Heights of the cubic curve at each layer: the nearest of very many points on it."""
    t = torch.linspace(0, 1, samples, dtype=torch.float64)
    shares = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]
    x = sum(share * point[0] for share, point in zip(shares, points, strict=True))
    y = sum(share * point[1] for share, point in zip(shares, points, strict=True))
    first, last = points[0][0], points[-1][0]
    targets = [first + (last - first) * layer / (layers - 1) for layer in range(layers)]
    return [y[(x - target).abs().argmin()].item() for target in targets]
