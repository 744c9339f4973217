"""Prompts in tokens, made from where their documents lie."""

from collections.abc import Sequence

from rag_middle.layout import PromptLayout
from rag_middle.tokens import TokenizedPrompt

__all__ = ["laid_out"]


def laid_out(layout: PromptLayout, ids: Sequence[int] | None = None) -> TokenizedPrompt:
    """A prompt with this layout; its tokens are the numbers from 1 on unless they are given."""
    return TokenizedPrompt(
        input_ids=tuple(range(1, 1 + layout.length) if ids is None else ids),
        layout=layout,
        document_ids=(None,) * len(layout.documents),
    )
