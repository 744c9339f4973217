"""`MarkDocuments`, where LlamaIndex's users look for node postprocessors.

::

    engine = index.as_query_engine(node_postprocessors=[MarkDocuments()])
"""

from llama_index.llms.rag_middle.nodes import MarkDocuments

__all__ = ["MarkDocuments"]
