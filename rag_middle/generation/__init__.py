"""Generate, stream, batch and score with marked documents under a method.

::

    model = RagMiddleModel.from_pretrained("Qwen/Qwen2.5-7B-Instruct", method="pine")
    print(model.generate(prompt, max_new_tokens=32).text)
"""

from rag_middle.generation.identity import model_facts
from rag_middle.generation.loaded import loaded_parts, transformers_options
from rag_middle.generation.model import RagMiddleModel, TextGenerator
from rag_middle.generation.prompts import MethodLike, Prompt
from rag_middle.generation.results import (
    DroppedDocument,
    FinishReason,
    Generation,
    Score,
    Timings,
    TokenLogProbability,
    Usage,
)
from rag_middle.generation.sharing import release_models, shared_model
from rag_middle.generation.streaming import Follower, GenerationStream
from rag_middle.methods.document_blocks.document_cache import DocumentCache
from rag_middle.notices import (
    BackendFallbackWarning,
    ChatTemplateWarning,
    MissingDocumentsWarning,
    NumberedDocumentsWarning,
    ProfileWarning,
    UnreadMarkersWarning,
)
from rag_middle.options import EncodeKwargs, GenerationKwargs, GenerationOptions, PromptKwargs

__all__ = [
    "BackendFallbackWarning",
    "ChatTemplateWarning",
    "DocumentCache",
    "DroppedDocument",
    "EncodeKwargs",
    "FinishReason",
    "Follower",
    "Generation",
    "GenerationKwargs",
    "GenerationOptions",
    "GenerationStream",
    "MethodLike",
    "MissingDocumentsWarning",
    "NumberedDocumentsWarning",
    "ProfileWarning",
    "Prompt",
    "PromptKwargs",
    "RagMiddleModel",
    "Score",
    "TextGenerator",
    "Timings",
    "TokenLogProbability",
    "UnreadMarkersWarning",
    "Usage",
    "loaded_parts",
    "model_facts",
    "release_models",
    "shared_model",
    "transformers_options",
]
