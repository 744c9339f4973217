"""CacheBlend (arXiv:2405.16444), from the paper: caches of single documents, partly recomputed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.llama import NaiveLlama


@dataclass
class _Recording(NaiveLlama):
    """Keeps every layer's keys and values, before their rotation."""

    states: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        self.states.append(self.project(layer, hidden)[1:])
        return super().attention(layer, hidden)


@dataclass
class NaiveCacheBlend(NaiveLlama):
    """Documents' keys and values come from reading each alone behind the prefix.

    Keys are kept before their rotation, and so need not be rotated back.

    Attributes:
        documents: spans of the prompt.
        share: of the document tokens that are recomputed.
        check_layer: in which they are chosen.
    """

    documents: Sequence[tuple[int, int]] = ()
    share: float = 0.0
    check_layer: int = 1

    def logits(self, ids: Tensor) -> Tensor:
        self.cached: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by token, then by layer
        for start, end in self.documents:
            first = self.documents[0][0]
            alone = _Recording(
                self.weights,
                self.layers,
                self.heads,
                self.kv_heads,
                self.head_size,
                self.theta,
                self.eps,
                self.prompt_tokens,
            )
            alone.logits(torch.cat((ids[:first], ids[start:end])))
            for token in range(start, end):
                at = first + token - start
                self.cached[token] = [(k[:, at], v[:, at]) for k, v in alone.states]
        self.kept: list[int] = []
        return super().logits(ids)

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(layer, hidden)
        if layer == self.check_layer:
            deviation = {
                token: ((k[:, token] - states[layer][0]) ** 2).sum().item()
                + ((v[:, token] - states[layer][1]) ** 2).sum().item()
                for token, states in self.cached.items()
            }
            ranked = sorted(deviation, key=deviation.__getitem__, reverse=True)
            self.kept = ranked[int(self.share * len(ranked)) :]
        for token in self.kept:
            k[:, token], v[:, token] = self.cached[token][layer]
        return q, k, v
