"""Local models that read every retrieved document: rag-middle as an LLM of LlamaIndex.

::

    Settings.llm = RagMiddleLLM(model_name="Qwen/Qwen2.5-7B-Instruct", method="pine")
    Settings.prompt_helper = DocumentPromptHelper.from_llm(Settings.llm)
    engine = index.as_query_engine(node_postprocessors=[MarkDocuments()])
"""

from llama_index.llms.rag_middle.base import RagMiddleLLM
from llama_index.llms.rag_middle.embedding import RagMiddleEmbedding
from llama_index.llms.rag_middle.errors import (
    ContextWindowError,
    RequestError,
)
from llama_index.llms.rag_middle.nodes import (
    MarkDocuments,
    format_nodes,
)
from llama_index.llms.rag_middle.packing import DocumentPromptHelper, DroppedTextWarning
from llama_index.llms.rag_middle.synthesizers import (
    MarkedCitationQueryEngine,
    MarkedSynthesizer,
)

from rag_middle import unmark
from rag_middle.generation import release_models

__all__ = [
    "ContextWindowError",
    "DocumentPromptHelper",
    "DroppedTextWarning",
    "MarkDocuments",
    "MarkedCitationQueryEngine",
    "MarkedSynthesizer",
    "RagMiddleEmbedding",
    "RagMiddleLLM",
    "RequestError",
    "format_nodes",
    "release_models",
    "unmark",
]
