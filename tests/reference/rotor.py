"""RoToR (arXiv:2502.08662) one query, one key at a time, as the definition says it.

Documents stand in the prompt in the reverse of the global order: the last one is its first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveRotor(NaiveLlama):
    """Every query sees documents in the global order, a document beginning with itself."""

    documents: tuple[tuple[int, int], ...] = ()

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        tokens = hidden.shape[0]
        out = torch.zeros(self.heads, tokens, self.head_size)
        for head in range(self.heads):
            keys, values = k[self.group(head)], v[self.group(head)]
            for token in range(tokens):
                at, places = self.places(token, tokens)
                seen = sorted(places)
                query = self.rotated(q[head, token][None], torch.tensor([at]))
                placed = self.rotated(keys[seen], torch.tensor([places[other] for other in seen]))
                scores = (query @ placed.T)[0] / self.head_size**0.5
                out[head, token] = scores.softmax(-1) @ values[seen]
        return out

    def places(self, token: int, tokens: int) -> tuple[int, dict[int, int]]:
        """Position of a query, and of every key that it sees."""
        own = next((i for i, (a, b) in enumerate(self.documents) if a <= token < b), None)
        if own is None:
            return token, {other: other for other in range(token + 1)}
        first, last = self.documents[0][0], self.documents[-1][1]
        end, places = last, {other: other for other in range(first)}
        # The global order runs from the last document of the prompt to the first, and round again.
        for step in range(len(self.documents)):
            start, stop = self.documents[(own - step) % len(self.documents)]
            for other in range(start, stop):
                places[other] = end - stop + other
            end -= stop - start
        at = places[token]
        for other in range(token + 1, self.documents[own][1]):
            del places[other]
        return at, places
