"""Which documents a model reads densely (SIW, arXiv:2512.13109)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rag_middle.layout import PromptLayout


class DocumentTokens(NamedTuple):
    """Which document tokens belong to, on a device.

    Attributes:
        lengths: `[D]` tokens of each document.
        document_of: `[T]` index of the document of each document token.
    """

    lengths: Tensor
    document_of: Tensor

    @classmethod
    def of(cls, layout: PromptLayout, device: torch.device) -> DocumentTokens:
        """Those of a prompt."""
        # The type is said because a prompt may have no documents, and no numbers have no type.
        lengths = torch.tensor(layout.document_lengths, dtype=torch.long, device="cpu")
        document_of = torch.arange(len(lengths), device="cpu").repeat_interleave(lengths)
        return cls(lengths.to(device), document_of.to(device))


def document_density(
    attention: Tensor,
    layout: PromptLayout,
    top_share: float,
    tokens: DocumentTokens | None = None,
) -> Tensor:
    """How much more of each document is attended to than of all documents together.

    Args:
        attention: of the last prompt token over the prompt, `[l]`.
        layout: of the prompt.
        top_share: share of the prompt's tokens, by attention, that count as attended to.
        tokens: `DocumentTokens` of the layout, if at hand.

    Returns:
        `[D]`: a document's share of attended tokens minus that of all documents' tokens. Above
        zero the document is dense, below it is sparse; zero for a document on its own
        and for an empty one.
    """
    lengths, document_of = tokens or DocumentTokens.of(layout, attention.device)
    count = max(1, round(top_share * attention.shape[0]))
    attended = torch.zeros_like(attention, dtype=torch.long)
    attended.index_fill_(0, attention.topk(count).indices, 1)
    of_documents = attended[layout.prefix_tokens : layout.suffix_start]
    counts = torch.zeros_like(lengths).index_add_(0, document_of, of_documents)
    # Shares, not counts: a document is not dense for being long. Compared as whole numbers: the
    # rounding of a division must not decide about equal shares.
    total = lengths.sum()
    difference = counts * total - of_documents.sum() * lengths
    return difference / (lengths * total).clamp(min=1)
