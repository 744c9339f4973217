"""Local models that read every retrieved document: rag-middle as components of Haystack.

::

    pipeline.add_component("llm", RagMiddleChatGenerator("Qwen/Qwen2.5-7B-Instruct", method="pine"))
    pipeline.connect("retriever.documents", "llm.documents")
"""

from haystack_integrations.components.generators.rag_middle.chat_generator import (
    RagMiddleChatGenerator,
)
from haystack_integrations.components.generators.rag_middle.documents import DocumentMarker

from rag_middle import unmark
from rag_middle.generation import release_models

__all__ = ["DocumentMarker", "RagMiddleChatGenerator", "release_models", "unmark"]
