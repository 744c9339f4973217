"""Dense retrieval: load, split and embed documents, index them with faiss, retrieve.

::

    built = build_index("docs/", "docs-index")
    documents = Retriever(index=built.index, top_k=10)("How is a method added?")

Needs ``pip install 'rag-middle[demo]'``; the libraries are imported when first used.
"""

from rag_middle.documents import Document as Chunk  # what an index holds
from rag_middle.retrieval.building import Built, build_index, default_index_folder
from rag_middle.retrieval.embedders import (
    DEFAULT_EMBEDDER,
    Embedder,
    SentenceTransformerEmbedder,
    TruncatedTextWarning,
)
from rag_middle.retrieval.faiss_index import Changes, FaissIndex, Retriever
from rag_middle.retrieval.readers import Loaded, Skipped, check_exists, load
from rag_middle.retrieval.splitting import split

__all__ = [
    "DEFAULT_EMBEDDER",
    "Built",
    "Changes",
    "Chunk",
    "Embedder",
    "FaissIndex",
    "Loaded",
    "Retriever",
    "SentenceTransformerEmbedder",
    "Skipped",
    "TruncatedTextWarning",
    "build_index",
    "check_exists",
    "default_index_folder",
    "load",
    "split",
]
