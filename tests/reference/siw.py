"""Initial token weights (arXiv:2512.13109): the matrix of weights with its first column changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveSIW(NaiveLlama):
    """Rows of a document's tokens weigh the initial token ``alpha`` times as much.

    Attributes:
        documents: spans of the prompt.
        alphas: per changed layer one factor for each document; ``None`` to find dense documents.
        alpha_dense, alpha_sparse: the factors where they are found.
        top_share: of the prompt's tokens that count as attended to.
        token: whose weight changes.
        renormalise: divide the changed rows by their sum.
    """

    documents: Sequence[tuple[int, int]] = ()
    alphas: Mapping[int, Sequence[float] | None] = field(default_factory=dict)
    alpha_dense: float = 1.0
    alpha_sparse: float = 1.0
    top_share: float = 0.3
    token: int = 0
    renormalise: bool = False

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        weights = self.weights_of_heads(q, k)
        if layer in self.alphas:
            alphas = self.alphas[layer] or self.found(weights)
            for (start, end), alpha in zip(self.documents, alphas, strict=True):
                for token in range(start, end):
                    weights[:, token, self.token] *= alpha
                    if self.renormalise:
                        weights[:, token] /= weights[:, token].sum(-1, keepdim=True)
        return torch.stack([weights[h] @ v[self.group(h)] for h in range(self.heads)])

    def weights_of_heads(self, q: Tensor, k: Tensor) -> Tensor:
        """`[h, n, n]` from queries `[h, n, d]` and keys `[g, n, d]`."""
        positions = torch.arange(q.shape[1])
        return torch.stack(
            [
                self.weights_of(
                    self.rotated(q[head], positions),
                    self.rotated(k[self.group(head)], positions),
                )
                for head in range(self.heads)
            ]
        )

    def found(self, weights: Tensor) -> list[float]:
        """Dense documents have a larger share of attended tokens than all documents together,
        sparse ones a smaller one; a document with just that share is left alone."""
        last = weights[:, self.prompt_tokens - 1, : self.prompt_tokens].mean(0)
        count = max(1, round(self.top_share * self.prompt_tokens))
        order = sorted(range(self.prompt_tokens), key=lambda token: -last[token].item())
        attended = set(order[:count])
        first, last_end = self.documents[0][0], self.documents[-1][1]
        overall = Fraction(
            sum(token in attended for token in range(first, last_end)), last_end - first
        )
        alphas = []
        for start, end in self.documents:
            share = Fraction(sum(token in attended for token in range(start, end)), end - start)
            alpha = self.alpha_dense if share > overall else self.alpha_sparse
            alphas.append(1.0 if share == overall else alpha)
        return alphas
