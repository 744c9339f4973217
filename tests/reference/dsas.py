"""DSAS (arXiv:2510.12251): the matrix of scores of each layer, changed entry by entry.

Written from the behaviour of the authors' code, in loops: scores before the softmax, all heads'
together where documents are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveDSAS(NaiveLlama):
    """Attributes:
    documents: spans of the prompt.
    changed: layers.
    alpha, beta, top_tokens: of the method.
    """

    documents: Sequence[tuple[int, int]] = ()
    changed: Sequence[int] = ()
    alpha: float = 1.0
    beta: float = 0.7
    top_tokens: int = 10

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        n = hidden.shape[0]
        positions = torch.arange(n)
        scores = torch.stack(
            [
                self.rotated(q[head], positions)
                @ self.rotated(k[self.group(head)], positions).T
                / self.head_size**0.5
                for head in range(self.heads)
            ]
        )
        if layer in self.changed and len(self.documents) > 1:
            self.suppress(scores)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        weights = scores.softmax(-1)
        return torch.stack([weights[h] @ v[self.group(h)] for h in range(self.heads)])

    def suppress(self, scores: Tensor) -> None:
        gates = self.gates(scores.sum(0))
        suffix, end = self.documents[-1][1], self.prompt_tokens
        for (first, last), gate in zip(self.documents, gates, strict=True):
            if gate < (1 + self.beta) / 2:
                scores[:, suffix:end, first:last] *= gate
        average = mean(gates)
        for i, rows in enumerate(self.documents):
            for j, columns in enumerate(self.documents[:i]):
                if (gates[i] > average) != (gates[j] > average):
                    scores[:, slice(*rows), slice(*columns)] *= min(gates[i], gates[j])

    def gates(self, summed: Tensor) -> list[float]:
        question = range(self.documents[-1][1], self.prompt_tokens - 1)
        last = self.prompt_tokens - 1
        relevance = []
        for start, end in self.documents:
            looked_at = [
                sum(float(summed[row, token]) for row in question)
                + len(question) * float(summed[last, token])
                for token in range(start, end)
            ]
            relevance.append(sum(sorted(looked_at)[-self.top_tokens :]))
        average, deviation = mean(relevance), stdev(relevance)
        gates = [
            0.5 + 0.5 / (1 + math.exp(-(value - average) / (deviation + 1e-8)))
            for value in relevance
        ]
        order = sorted(range(len(gates)), key=lambda document: -gates[document])
        half = len(gates) // 2
        tokens = NormalDist(mean(range(last)), stdev(range(last)))
        power = [1.0] * len(gates)
        for document in order[:half]:
            start, end = self.documents[document]
            density = (tokens.cdf(end - 1) - tokens.cdf(start)) / (end - 1 - start)
            power[document] = tokens.stdev * density
        for rank, document in enumerate(order[:half]):
            gates[document] *= ((half + 1) / (rank + 1)) ** (self.alpha * power[document])
        least, most = min(gates), max(gates)
        return [self.beta + (1 - self.beta) * (g - least) / (most - least + 1e-8) for g in gates]
