"""RoToR (arXiv:2502.08662) one query, one key at a time, as the definition says it.

Documents stand in the prompt in the reverse of the global order: the last one is its first.
"""

from collections.abc import Callable
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


def naive_circle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: tuple[tuple[int, int], ...],
    place: Callable[[Tensor, Tensor], Tensor] | None,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """Output `[h, n, dv]` and log-sum-exp `[h, n]` of one layer, from un-rotated queries and keys.

    Args:
        q: `[h, n, d]`.
        k: `[g, n, d]`.
        v: `[g, n, dv]`.
        documents: half-open spans.
        place: rotates `[..., n, d]` to positions `[n]`; None for no rotary embedding.
        scale: factor of a dot product.
        softcap: of scores, if any.
        window: how far a query sees, if there is a limit.
    """
    heads, tokens, _ = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[0], dim=0) for x in (k, v))
    out, lse = q.new_zeros(heads, tokens, v.shape[-1]), q.new_zeros(heads, tokens)
    for token in range(tokens):
        own = next((i for i, (a, b) in enumerate(documents) if a <= token < b), None)
        seen = [*range(token + 1)]
        if own is not None:
            prefix = list(range(documents[0][0]))
            behind = list(range(documents[own][1], documents[-1][1]))
            seen = [*prefix, *behind, *range(documents[0][0], token + 1)]
        positions = torch.arange(len(seen), device=q.device)
        query, keys = q[:, token][:, None], k[:, seen]
        if place is not None:
            query, keys = place(query, positions[-1:]), place(keys, positions)
        scores = (query @ keys.transpose(1, 2))[:, 0] * scale
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if window is not None:
            scores = scores.masked_fill(positions[-1] - positions >= window, -torch.inf)
        lse[:, token] = scores.logsumexp(-1)
        out[:, token] = (scores.softmax(-1)[:, None] @ v[:, seen])[:, 0]
    return out, lse
