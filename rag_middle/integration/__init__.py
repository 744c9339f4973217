"""What the integrations with other frameworks share, and all that they may use.

LangChain's, LlamaIndex's and Haystack's import the public packages (`rag_middle`, its `generation`,
`methods` and `retrieval`) and this module, nothing else of rag-middle; a test looks at that. What
they do the same way is written once, behind these names.
"""

from __future__ import annotations

from rag_middle.conventions.documents import content_parts
from rag_middle.conventions.messages import message_fields, openai_logprobs, with_contents
from rag_middle.documents import MarkedText
from rag_middle.integration.calls import (
    call_options,
    chosen_method,
    named_model,
    refuse_secrets,
    split_call,
)
from rag_middle.integration.documents import citations_in, marked_text
from rag_middle.notices import warn_caller
from rag_middle.options import (
    ANSWERS,
    LOADING,
    OPTIONS,
    renamed,
    split_loading,
    unknown_option,
    with_token,
    without_secrets,
)
from rag_middle.threads import in_thread, pieces_in_thread
from rag_middle.tokens.conversation import with_documents
from rag_middle.tools.definitions import with_top_resolved

__all__ = [
    "ANSWERS",
    "LOADING",
    "OPTIONS",
    "MarkedText",
    "call_options",
    "chosen_method",
    "citations_in",
    "content_parts",
    "in_thread",
    "marked_text",
    "message_fields",
    "named_model",
    "openai_logprobs",
    "pieces_in_thread",
    "refuse_secrets",
    "renamed",
    "split_call",
    "split_loading",
    "unknown_option",
    "warn_caller",
    "with_contents",
    "with_documents",
    "with_token",
    "with_top_resolved",
    "without_secrets",
]
