"""Documents on their way into a text, and where an answer names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rag_middle.documents import ContextPrompt, Document, check_separator, labelled, mark
from rag_middle.errors import PromptError
from rag_middle.notices import MissingDocumentsWarning, warn_caller
from rag_middle.tokens.conversation import Conversation

if TYPE_CHECKING:
    from rag_middle.generation import Generation


def marked_text(
    documents: Sequence[Document],
    caller: str,
    *,
    numbered: bool = False,
    source: str | None = None,
    separator: str = "\n\n",
) -> str:
    """Documents as one marked text.

    Args:
        documents: in order.
        caller: the function that was given them, for messages.
        numbered: write ``[1]``, ``[2]``, ... into them.
        source: metadata to write into each in parentheses, or ``"id"`` for its id.
        separator: between documents: whitespace or signs.

    Raises:
        PromptError: a document does not have this `source`; the separator has words.

    Warns:
        MissingDocumentsWarning: there are none.
    """
    check_separator(separator)
    if not documents:
        warn_caller(
            MissingDocumentsWarning(
                f"{caller} was given none: retrieval found nothing, so the model will answer "
                "without any. Check the index and the question, or answer without the model."
            )
        )
    texts = []
    for number, document in enumerate(documents, start=1):
        name = document.id if source == "id" else document.metadata.get(source or "")
        if source is not None and name is None:
            names = [*(["id"] if document.id else []), *document.metadata]
            raise PromptError(
                f"{caller} was given one with no {source!r} to be called by: it has "
                f"{', '.join(names) or 'nothing'}."
            )
        label = None if source is None else str(name)
        texts.append(mark(labelled(document.text, number if numbered else None, label)))
    return separator.join(texts)


def citations_in(
    generation: Generation, prompt: object, form: Literal["langchain", "llama_index", "plain"]
) -> list[dict[str, Any]]:
    """Where an answer names documents that came as objects, by title or id.

    Args:
        generation: the answer.
        prompt: that was given to `RagMiddleModel.generate`.
        form: whose form the citations have.
    """
    from rag_middle.conventions import citations  # needs PyTorch

    forms = {
        "langchain": citations.langchain_citations,
        "llama_index": citations.llama_index_citations,
        "plain": citations.plain_citations,
    }
    documents = sources_of(prompt, generation)
    return forms[form](generation.text, documents) if documents else []


def sources_of(prompt: object, generation: Generation) -> list[Document]:
    """The documents of a prompt that an answer was made from; of marked text nothing is known."""
    if isinstance(prompt, list | tuple):
        if not any(isinstance(message["content"], ContextPrompt) for message in prompt):
            return []
        prompt = Conversation.of_messages(prompt).prompt
    documents = prompt.documents if isinstance(prompt, ContextPrompt) else ()
    if not documents:
        return []
    dropped = {document.index for document in generation.dropped_documents}
    # A method may have repeated them all.
    read = {*range(generation.documents + len(dropped))} - dropped
    indices = {index % len(documents) for index in read}
    return [document for index, document in enumerate(documents) if index in indices]
