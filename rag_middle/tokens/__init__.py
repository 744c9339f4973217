"""Prompts as token ids, with the span of every document.

::

    tokenized = encode(tokenizer, ContextPrompt(documents=[...], suffix="Question: ..."))
    tokenized.input_ids, tokenized.layout

``prompt``: what comes out (``TokenizedPrompt``). ``encode``: the way there.
``conversation``: messages. ``templates``, ``chat``: through chat templates. ``text``: text that
neither gains spaces nor turns into control tokens.
"""

from __future__ import annotations

from rag_middle.options import TemplateName
from rag_middle.tokens.encode import (
    count_tokens,
    encode,
    uses_chat_template,
)
from rag_middle.tokens.prompt import TokenizedPrompt, padded

__all__ = [
    "TemplateName",
    "TokenizedPrompt",
    "count_tokens",
    "encode",
    "padded",
    "uses_chat_template",
]
