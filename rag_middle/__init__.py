"""Training-free methods against lost-in-the-middle, for any local Hugging Face decoder.

The methods are in `rag_middle.methods`. Names that need torch are imported when first used, so
``import rag_middle`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle.errors import (
    CalibrationConfigError,
    CalibrationError,
    CalibrationStateError,
    ChatTemplateError,
    ContextOverflowError,
    DocumentLoadError,
    EmbedderError,
    EndpointConfigError,
    EndpointError,
    EndpointRefusedError,
    EndpointReplyError,
    EndpointUnreachableError,
    EvaluationConfigError,
    EvaluationDataError,
    EvaluationError,
    EvaluationRecordsError,
    GoldenFormatError,
    IncompatibleMethodsError,
    IndexFormatError,
    IndexLockedError,
    IndexMismatchError,
    IndexWriteError,
    KernelsUnavailableError,
    MarkerError,
    MethodConfigError,
    MissingExtraError,
    ModelFormatError,
    ModelNotFoundError,
    OutputWriteError,
    PatchIneffectiveError,
    ProfileFormatError,
    ProfileMismatchError,
    PromptError,
    RagMiddleError,
    RegistrationError,
    RetrievalConfigError,
    RetrievalError,
    UnknownNameError,
    UnsupportedArchitectureError,
    UnsupportedGenerationError,
    WeightsNeededError,
    WorkerConfigError,
    WorkerError,
)
from rag_middle.layout import PromptLayout
from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.attention import applied
    from rag_middle.documents import ContextPrompt, Document, escape, mark, parse
    from rag_middle.generation import DocumentCache, Generation, RagMiddleModel, install
    from rag_middle.methods import Method

__version__ = "0.1.0.dev0"

__all__ = [
    "CalibrationConfigError",
    "CalibrationError",
    "CalibrationStateError",
    "ChatTemplateError",
    "ContextOverflowError",
    "ContextPrompt",
    "Document",
    "DocumentCache",
    "DocumentLoadError",
    "EmbedderError",
    "EndpointConfigError",
    "EndpointError",
    "EndpointRefusedError",
    "EndpointReplyError",
    "EndpointUnreachableError",
    "EvaluationConfigError",
    "EvaluationDataError",
    "EvaluationError",
    "EvaluationRecordsError",
    "Generation",
    "GoldenFormatError",
    "IncompatibleMethodsError",
    "IndexFormatError",
    "IndexLockedError",
    "IndexMismatchError",
    "IndexWriteError",
    "KernelsUnavailableError",
    "MarkerError",
    "Method",
    "MethodConfigError",
    "MissingExtraError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OutputWriteError",
    "PatchIneffectiveError",
    "ProfileFormatError",
    "ProfileMismatchError",
    "PromptError",
    "PromptLayout",
    "RagMiddleError",
    "RagMiddleModel",
    "RegistrationError",
    "RetrievalConfigError",
    "RetrievalError",
    "UnknownNameError",
    "UnsupportedArchitectureError",
    "UnsupportedGenerationError",
    "WeightsNeededError",
    "WorkerConfigError",
    "WorkerError",
    "applied",
    "escape",
    "install",
    "mark",
    "parse",
]

__getattr__, __dir__ = names_on_first_use(
    __name__,
    {
        "attention": ("applied",),
        "documents": ("ContextPrompt", "Document", "escape", "mark", "parse"),
        "generation": ("DocumentCache", "Generation", "RagMiddleModel", "install"),
        "methods": ("Method",),
    },
)
