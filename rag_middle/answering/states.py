"""Prefill of an index's documents before any question, for methods that encode them separately."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rag_middle.answering.template import PromptTemplate
from rag_middle.errors import PromptError
from rag_middle.generation import RagMiddleModel
from rag_middle.retrieval import FaissIndex

_AT_ONCE = 16  # documents per forward pass


def states_folder(index_folder: str | Path) -> Path:
    """The folder of a document cache for an index: beside the index."""
    folder = Path(index_folder)
    return folder.with_name(f"{folder.name}.states")


def precompute(index: FaissIndex, model: RagMiddleModel, template: PromptTemplate) -> int:
    """Prefill all documents of an index into the model's `document_cache`.

    Args:
        index: what it holds.

    Returns:
        How many pieces (documents, and the text before them) were computed.

    Raises:
        PromptError: the question stands before the documents, so that their states depend on it.
        UnsupportedGenerationError: the model has no cache, or its states cannot be reused.
    """
    if "{question}" in template.prefix:
        raise PromptError(
            "Documents cannot be prefilled before the question where the prompt template has "
            "{question} in its prefix, on which their states depend. Move {question} to the suffix."
        )
    documents = [replace(it, metadata={"score": 0.0}) for it in index.documents]  # none is shown
    prompts = [
        template.prompt("", documents[start : start + _AT_ONCE])
        for start in range(0, len(documents), _AT_ONCE)
    ]
    return model.precompute(prompts)
