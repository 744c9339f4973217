"""Local models that read every retrieved document: rag-middle for LangChain.

::

    model = ChatRagMiddle(model="Qwen/Qwen2.5-7B-Instruct", method="pine")
    chain = create_stuff_documents_chain(model, prompt, document_prompt=DocumentPrompt())
"""

from langchain_rag_middle.arguments import IgnoredArgumentWarning
from langchain_rag_middle.chat_models import ChatRagMiddle
from langchain_rag_middle.documents import (
    DocumentPrompt,
    LongContextReorder,
    MarkDocuments,
    format_docs,
)
from langchain_rag_middle.llms import RagMiddleLLM
from langchain_rag_middle.retrievers import FaissRetriever, RagMiddleEmbeddings
from langchain_rag_middle.settings import release_models
from rag_middle import unmark

__all__ = [
    "ChatRagMiddle",
    "DocumentPrompt",
    "FaissRetriever",
    "IgnoredArgumentWarning",
    "LongContextReorder",
    "MarkDocuments",
    "RagMiddleEmbeddings",
    "RagMiddleLLM",
    "format_docs",
    "release_models",
    "unmark",
]
