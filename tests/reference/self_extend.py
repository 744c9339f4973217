"""Self-Extend (arXiv:2401.01325): two whole matrices of scores, and a choice between them."""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from tests.reference.siw import NaiveSIW


@dataclass
class NaiveSelfExtend(NaiveSIW):
    """Near keys at their distance, the others at grouped positions (equations 3 and 4).

    It is an SIW, too, so that both can be had at once; without `alphas` that changes nothing.
    """

    group_size: int = 1
    window: int = 1
    log_scale_base: float | None = None
    divides_exactly: bool = False

    def weights_of_heads(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[1]
        shift = self.window - (
            self.window / self.group_size
            if self.divides_exactly
            else self.window // self.group_size
        )
        exact = torch.arange(n)
        grouped = torch.tensor([i // self.group_size for i in range(n)])
        out = []
        for head in range(self.heads):
            query, key = q[head], k[self.group(head)]
            if self.log_scale_base is not None:
                growth = [max(1.0, log(i + 1) / log(self.log_scale_base)) for i in range(n)]
                query = query * torch.tensor(growth)[:, None]
            near = self.rotated(query, exact) @ self.rotated(key, exact).T
            far = self.rotated(query, grouped + shift) @ self.rotated(key, grouped).T
            scores = torch.full((n, n), float("-inf"))
            for i in range(n):
                for j in range(i + 1):
                    scores[i, j] = near[i, j] if i - j < self.window else far[i, j]
            out.append((scores / self.head_size**0.5).softmax(-1))
        return torch.stack(out)
