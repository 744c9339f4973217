"""Documents of an index read before anybody asks, for methods under which they are read apart."""

from __future__ import annotations

from pathlib import Path

from rag_middle.answering.template import PromptTemplate
from rag_middle.errors import PromptError
from rag_middle.generation import RagMiddleModel
from rag_middle.retrieval import FaissIndex, default_index_folder
from rag_middle.retrieval.manifest import is_index_folder

__all__ = ["precompute", "states_folder", "states_of"]


def states_folder(index_folder: str | Path) -> Path:
    """Where what models made of an index's documents is kept: beside the index."""
    folder = Path(index_folder)
    return folder.with_name(f"{folder.name}.states")


def states_of(
    documents: str | Path, index: FaissIndex, index_folder: str | Path | None
) -> Path | None:
    """The folder of states of an index that was opened, where there is one.

    Args:
        documents: that were indexed, or the folder of the saved index.
        index: as it was opened.
        index_folder: where it is kept, if not in the user's cache.
    """
    if is_index_folder(Path(documents)):
        kept = Path(documents)
    elif index_folder is not None:
        kept = Path(index_folder)
    else:
        kept = default_index_folder(documents, embedder=index.embedder.name)
    found = states_folder(kept)
    return found if found.is_dir() else None


def precompute(
    index: FaissIndex, model: RagMiddleModel, template: PromptTemplate, *, at_once: int = 16
) -> int:
    """Read all documents of an index into the model's `document_cache`.

    Args:
        index: its chunks are the documents.
        model: with a cache.
        template: of the prompts that will be sent.
        at_once: documents in one pass of the model.

    Returns:
        How many pieces (documents, and the text before them) were computed.

    Raises:
        PromptError: the question stands before the documents, so that nothing is known before it.
        UnsupportedGenerationError: the model has no cache, or its states cannot be reused.
    """
    if "{question}" in template.prefix:
        raise PromptError(
            "Documents cannot be read beforehand where the prompt template has {question} in its "
            "prefix: what a document reads as depends on it. Move {question} to the suffix."
        )
    documents = [chunk.document(0.0) for chunk in index.chunks]
    prompts = [
        template.prompt("", documents[start : start + at_once])
        for start in range(0, len(documents), at_once)
    ]
    return model.precompute(prompts)
