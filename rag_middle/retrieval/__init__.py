"""Dense retrieval: load, split and embed documents, index them with faiss, retrieve.

::

    built = build_index("docs/", "docs-index")
    documents = Retriever(index=built.index, top_k=10)("How is a method added?")

Needs ``pip install 'rag-middle[demo]'``; the libraries are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle.lazy import names_on_first_use
from rag_middle.notices import ReadingWarning
from rag_middle.retrieval.loading import MAX_FILE_BYTES, Loaded, check_exists, content_hash, load
from rag_middle.retrieval.records import Chunk, Record, Skipped
from rag_middle.retrieval.splitting import Splitter

if TYPE_CHECKING:
    from rag_middle.retrieval.building import (
        Built,
        build_index,
        default_index_folder,
        default_splitter,
        saved_settings,
        unchanged_index,
    )
    from rag_middle.retrieval.embedder_files import DEFAULT_EMBEDDER
    from rag_middle.retrieval.embedders import (
        Embedder,
        SentenceTransformerEmbedder,
        TruncatedTextWarning,
    )
    from rag_middle.retrieval.faiss_index import Changes, FaissIndex, Hit
    from rag_middle.retrieval.retriever import Retriever

__all__ = [
    "DEFAULT_EMBEDDER",
    "MAX_FILE_BYTES",
    "Built",
    "Changes",
    "Chunk",
    "Embedder",
    "FaissIndex",
    "Hit",
    "Loaded",
    "ReadingWarning",
    "Record",
    "Retriever",
    "SentenceTransformerEmbedder",
    "Skipped",
    "Splitter",
    "TruncatedTextWarning",
    "build_index",
    "check_exists",
    "content_hash",
    "default_index_folder",
    "default_splitter",
    "load",
    "saved_settings",
    "unchanged_index",
]

# What is wrong with a path is said without numpy, which these need.
__getattr__, __dir__ = names_on_first_use(__name__)
