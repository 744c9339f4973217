"""Prompts that do not fit the context window: refused, or shortened by whole documents."""

from __future__ import annotations

from rag_middle.errors import ContextOverflowError
from rag_middle.generation.results import DroppedDocument
from rag_middle.tokens import TokenizedPrompt

__all__ = ["fitted"]


def relevance_of(prompt: TokenizedPrompt) -> tuple[float, ...]:
    """One number per document, higher is more relevant: its score, or the earlier the more."""
    if prompt.scores is not None:
        return prompt.scores
    return tuple(-float(index) for index in range(len(prompt.layout.documents)))


def fitted(
    prompt: TokenizedPrompt,
    *,
    max_new_tokens: int,
    context_window: int | None,
    drop_documents: bool,
    example: int = 0,
) -> tuple[TokenizedPrompt, tuple[DroppedDocument, ...]]:
    """The prompt, short enough, and the documents that were left out, in prompt order.

    Of equally relevant documents the later one goes first. The other documents keep their order.

    Args:
        prompt: in tokens; its scores say which documents matter least.
        max_new_tokens: tokens that must fit after the prompt.
        context_window: tokens that fit, ``None`` where nobody knows.
        drop_documents: leave documents out, rather than refuse.
        example: 0-based index in the batch, for the message.

    Raises:
        ContextOverflowError: the prompt does not fit, with `drop_documents` not even without any.
    """
    if context_window is None:
        return prompt, ()
    excess = len(prompt) + max_new_tokens - context_window
    if excess <= 0:
        return prompt, ()
    lengths = prompt.layout.document_lengths
    if not drop_documents or excess > sum(lengths):
        raise ContextOverflowError(
            prompt_tokens=len(prompt) - (sum(lengths) if drop_documents else 0),
            max_new_tokens=max_new_tokens,
            context_window=context_window,
            example=example,
            without_documents=drop_documents,
        )
    dropped: set[int] = set()
    relevance = relevance_of(prompt)
    for index in sorted(range(len(lengths)), key=lambda i: (relevance[i], -i)):
        if excess <= 0:
            break
        if lengths[index]:  # leaving an empty document out gains nothing
            dropped.add(index)
            excess -= lengths[index]
    kept = prompt.select(index for index in range(len(lengths)) if index not in dropped)
    return kept, tuple(
        DroppedDocument(index=index, id=prompt.document_ids[index]) for index in sorted(dropped)
    )
