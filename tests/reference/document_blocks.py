"""Documents read apart (arXiv:2212.10947, 2212.06713, 2502.05431), one query at a time.

Written to be read beside the papers, not to be fast: every query lists the keys it sees and where
they stand, and weighs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class NaiveBlocks(NaiveLlama):
    """Documents see the prefix and themselves, later tokens everything before them.

    Attributes:
        documents: spans of the prompt.
        placement: positions as in the prompt; all documents begin behind the prefix, or end where
            the longest then ends, or then stand where they stand in the prompt; or all end where
            the last one does.
        temperature, scale: of APE.
        one_of_many: a document's weights are divided by the number of documents.
    """

    documents: Sequence[tuple[int, int]] = ()
    placement: Literal["kept", "start", "end", "order", "last"] = "kept"
    temperature: float = 1.0
    scale: float = 1.0
    one_of_many: bool = False

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        out = torch.zeros_like(q)
        for head in range(self.heads):
            keys, values = k[self.group(head)], v[self.group(head)]
            for token in range(hidden.shape[0]):
                seen = [other for other in range(token + 1) if self.sees(token, other)]
                scores = [
                    self.at(q[head, token], self.position(token, token))
                    @ self.at(keys[other], self.position(token, other))
                    / self.head_size**0.5
                    for other in seen
                ]
                out[head, token] = self.weigh(token, seen, scores) @ values[seen]
        return out

    def at(self, x: Tensor, position: int) -> Tensor:
        return self.rotated(x[None], torch.tensor([position]))[0]

    def owner(self, token: int) -> int | None:
        for index, (start, end) in enumerate(self.documents):
            if start <= token < end:
                return index
        return None

    def sees(self, token: int, other: int) -> bool:
        mine, theirs = self.owner(token), self.owner(other)
        return mine is None or theirs is None or mine == theirs

    def position(self, query: int, token: int) -> int:
        """Where `token` stands for `query`."""
        first, last = self.documents[0][0], self.documents[-1][1]
        longest = max(end - start for start, end in self.documents)
        owner = self.owner(token)
        if self.placement == "kept" or token < first:
            return token
        if owner is None:
            in_order = self.placement in ("last", "order")
            return token if in_order else first + longest + token - last
        start, end = self.documents[owner]
        if self.placement == "last":
            return last - end + token
        if self.placement == "order" and query >= last:
            return token
        behind_prefix = first + token - start
        if self.placement == "end" and query >= last:
            # Documents are read as at the start, by themselves, and then moved.
            return behind_prefix + longest - (end - start)
        return behind_prefix

    def weigh(self, token: int, seen: list[int], scores: list[Tensor]) -> Tensor:
        """Weights of the seen keys, by the exponentials the papers write down."""
        if self.owner(token) is not None or token < self.documents[0][0]:
            return torch.stack(scores).softmax(0)
        sharp = {
            other: math.exp(score / self.temperature)
            for other, score in zip(seen, scores, strict=True)
            if self.owner(other) is not None
        }
        mass = sum(sharp.values()) ** (self.scale * self.temperature)
        if self.one_of_many:
            mass /= len(self.documents)
        weights = [
            mass * sharp[other] / sum(sharp.values()) if other in sharp else math.exp(score)
            for other, score in zip(seen, scores, strict=True)
        ]
        return torch.tensor(weights) / sum(weights)
