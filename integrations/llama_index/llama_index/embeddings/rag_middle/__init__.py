"""`RagMiddleEmbedding`, where LlamaIndex's users look for embeddings.

::

    Settings.embed_model = RagMiddleEmbedding()
"""

from llama_index.llms.rag_middle.embedding import RagMiddleEmbedding

__all__ = ["RagMiddleEmbedding"]
