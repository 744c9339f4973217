"""Documents in a circle (RoToR, arXiv:2502.08662): who sees whom, and from how far away.

With one order of documents for all queries, a document as the query sees itself last and the
others before it in the circle of that order. Laid out for the document that ends at ``e`` of ``T``
document tokens, the prompt reads

::

    prefix | documents behind e, up to T | documents from 0 to e

So its own document and those before it stand where they stand in the prompt. Those behind it moved
in front, ``T`` positions back, and the prefix moved back by what now stands between, ``T - e``.
Tokens after the documents see the prompt as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["circle_distances", "circle_keys"]


def circle_keys(prefix: Tensor, documents: Tensor, wrapped: Tensor, end: int) -> Tensor:
    """Keys or values `[..., P + T, d]` as the document that ends at `end` sees them.

    Args:
        prefix: `[..., P, d]`, keys moved back by ``T - end``.
        documents: `[..., T, d]`, as in the prompt.
        wrapped: `[..., T, d]`, keys moved back by ``T``.
        end: after the last token of the query's document, counted from the first document token.
    """
    return torch.cat((prefix, documents[..., :end, :], wrapped[..., end:, :]), dim=-2)


def circle_distances(
    prefix_tokens: int, document_tokens: int, start: int, end: int, device: torch.device
) -> Tensor:
    """How far each key stands before each query of one document, `[end - start, P + T]`.

    A key of its own document that follows the query has a negative distance: it is not seen.

    Args:
        prefix_tokens: ``P``.
        document_tokens: ``T``.
        start: of the document, counted from the first document token.
        end: of the document, likewise.
        device: where to put it.
    """
    query = torch.arange(start, end, device=device)[:, None]
    key = torch.arange(-prefix_tokens, document_tokens, device=device)[None, :]
    distance = query - key
    moved = torch.where(key < 0, document_tokens - end, 0)
    moved = torch.where(key >= end, document_tokens, moved)
    return distance + moved
