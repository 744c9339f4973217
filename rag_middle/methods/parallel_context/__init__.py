"""Methods whose documents do not attend to each other; they differ in where documents stand."""

from rag_middle.methods.parallel_context.ape import APE
from rag_middle.methods.parallel_context.no_inter_document_attention import (
    NoInterDocumentAttention,
)
from rag_middle.methods.parallel_context.parallel_context_windows import ParallelContextWindows
from rag_middle.methods.parallel_context.set_based_prompting import SetBasedPrompting
from rag_middle.methods.parallel_context.structured_prompting import StructuredPrompting

__all__ = [
    "APE",
    "NoInterDocumentAttention",
    "ParallelContextWindows",
    "SetBasedPrompting",
    "StructuredPrompting",
]
