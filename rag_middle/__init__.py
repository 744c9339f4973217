"""Training-free methods against lost-in-the-middle, for any local Hugging Face decoder.

The methods are in `rag_middle.methods`. Names that need torch are imported when first used, so
``import rag_middle`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_middle import (
    errors,
    markers,  # noqa: F401 - here, so that its key is drawn before a process forks
)
from rag_middle.errors import *  # noqa: F403 - all of them are public
from rag_middle.layout import PromptLayout
from rag_middle.lazy import names_on_first_use

if TYPE_CHECKING:
    from rag_middle.attention import applied
    from rag_middle.documents import ContextPrompt, Document, mark, parse, unmark
    from rag_middle.generation import DocumentCache, Generation, RagMiddleModel
    from rag_middle.markers import escape
    from rag_middle.methods import Method

__version__ = "0.1.0.dev0"

__all__ = [
    "ContextPrompt",
    "Document",
    "DocumentCache",
    "Generation",
    "Method",
    "PromptLayout",
    "RagMiddleModel",
    "applied",
    "escape",
    "mark",
    "parse",
    "unmark",
]
__all__ += errors.__all__

__getattr__, __dir__ = names_on_first_use(__name__)
