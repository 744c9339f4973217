"""A tokenizer that several threads may use, and a prompt's way through it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import PromptError
from rag_middle.tokens import TokenizedPrompt, count_tokens, encode
from rag_middle.tokens.encode import Prompt as Text
from rag_middle.tokens.text import TextEncoder

__all__ = ["LockedTokenizer", "Prompt", "check_prompt"]

#: What a request takes: text with document markers, a prompt, chat messages, or tokens.
Prompt = Text | TokenizedPrompt

_locks: WeakKeyDictionary[PreTrainedTokenizerBase, threading.Lock] = WeakKeyDictionary()
_registry_lock = threading.Lock()


class LockedTokenizer:
    """A tokenizer behind a lock, one lock however many models share it.

    Fast tokenizers switch settings back and forth inside calls, which two threads may not do at a
    time. The tokenizer itself is never changed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        with _registry_lock:
            self._lock = _locks.setdefault(tokenizer, threading.Lock())

    def encode(self, prompt: Text, **options: Any) -> TokenizedPrompt:
        """The prompt in tokens; options are those of `tokens.encode`."""
        with self._lock:
            return encode(self.tokenizer, prompt, **options)

    def continuation(self, text: str) -> tuple[int, ...]:
        """Ids of text that follows a prompt."""
        with self._lock:
            return tuple(TextEncoder(self.tokenizer).encode_inert(text, continues=True))

    def count(self, text: str | Document) -> int:
        """Tokens of text inside a prompt."""
        with self._lock:
            return count_tokens(self.tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens, without special tokens, spaces as they are."""
        with self._lock:
            text = self.tokenizer.decode(
                list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return str(text)


def check_prompt(prompt: object) -> None:
    """Raise `PromptError` unless `prompt` is of a type that requests take."""
    if isinstance(prompt, str | ContextPrompt | TokenizedPrompt):
        return
    if not isinstance(prompt, Sequence) or not all(isinstance(m, Mapping) for m in prompt):
        hint = " Several prompts go through batch()." if isinstance(prompt, list | tuple) else ""
        raise PromptError(
            "A prompt is a string, a ContextPrompt, a list of chat messages or a TokenizedPrompt, "
            f"got {_shown(prompt)}.{hint}"
        )


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        kinds = sorted({type(item).__name__ for item in value})
        return f"a {type(value).__name__} of {', '.join(kinds)}"
    return f"{type(value).__name__}"
