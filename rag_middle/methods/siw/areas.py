"""Which documents a model reads densely (SIW, arXiv:2512.13109)."""

from __future__ import annotations

import torch
from torch import Tensor

from rag_middle.layout import PromptLayout

__all__ = ["document_density"]


def document_density(attention: Tensor, layout: PromptLayout, top_share: float) -> Tensor:
    """How much more of each document is attended to than of all documents together.

    Args:
        attention: of the last prompt token over the prompt, `[l]`.
        layout: of the prompt.
        top_share: share of the prompt's tokens, by attention, that count as attended to.

    Returns:
        `[D]`: a document's share of attended tokens minus that of all documents' tokens. Above
        zero the document is dense, below it is sparse; zero for a document on its own
        and for an empty one.
    """
    count = max(1, round(top_share * attention.shape[0]))
    attended = torch.zeros_like(attention, dtype=torch.long)
    attended[attention.topk(count).indices] = 1
    of_documents = attended[layout.prefix_tokens : layout.suffix_start]
    # The type is said because a prompt may have no documents, and no numbers have no type.
    lengths = torch.tensor(layout.document_lengths, dtype=torch.long, device=attention.device)
    owner = torch.arange(len(layout.documents), device=attention.device).repeat_interleave(
        lengths, output_size=layout.document_tokens
    )
    counts = lengths.new_zeros(len(layout.documents)).index_add_(0, owner, of_documents)
    # Shares, not counts: a document is not dense for being long. Compared as whole numbers: the
    # rounding of a division must not decide about equal shares.
    total = lengths.sum()
    difference = counts * total - of_documents.sum() * lengths
    return difference / (lengths * total).clamp(min=1)
