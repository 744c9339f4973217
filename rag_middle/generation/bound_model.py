"""A model bound to its tokenizer and to a method, and prompts as it takes them: in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import model_traits
from rag_middle.documents import Document, unmark
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.fingerprint import fingerprint
from rag_middle.generation.document_cache import DocumentCache, precompute
from rag_middle.generation.facts import device_of
from rag_middle.generation.options import EncodeKwargs, check_context_window, checked_options
from rag_middle.generation.preparing import MethodLike, Preparer
from rag_middle.generation.tokenizing import Prompt
from rag_middle.methods import Method, NoMethod, Runner, resolve_method
from rag_middle.methods.parallel_context import can_reuse_documents
from rag_middle.tokens import TokenizedPrompt

__all__ = ["BoundModel"]


class BoundModel:
    """What every request needs: a model, its tokenizer, a method, documents read beforehand.

    Arguments and errors are those of `RagMiddleModel`. Nothing of a request is kept here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        method: MethodLike = "none",
        method_options: Mapping[str, Any] | None = None,
        context_window: int | None = None,
        self_check: bool = True,
        document_cache: DocumentCache | None = None,
    ) -> None:
        if model.config.is_encoder_decoder or not model.can_generate():
            raise UnsupportedGenerationError(
                f"{type(model).__name__} is no decoder with a language-modelling head: load one "
                "with AutoModelForCausalLM."
            )
        check_context_window(context_window)
        self.model = model
        self.tokenizer = tokenizer
        self.document_cache = document_cache
        traits = model_traits(model)
        window = traits.context_window if context_window is None else context_window
        self._prepare = Preparer(model, tokenizer, context_window=window, self_check=self_check)
        self._method = self._prepare.checked(resolve_method(method, method_options))

    @property
    def method(self) -> Method:
        """What calls run under that name no method of their own."""
        return self._method

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together; ``None`` where nobody knows."""
        return self._prepare.context_window

    @property
    def device(self) -> torch.device:
        """Where token ids go in; the other layers may be elsewhere."""
        return device_of(self.model)

    @property
    def runner(self) -> Runner:
        """Runs the model as methods do that look at prompts before they answer."""
        return self._prepare.runner(NoMethod())

    def fingerprint(self) -> str:
        """A digest of what the model computes now: of its weights, adapters and settings.

        It costs some milliseconds, and reads all weights the first time. See
        `rag_middle.fingerprint.fingerprint` for what it does not notice.
        """
        return fingerprint(self.model)

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object, known to take effect on this model.

        Raises:
            As the class does for its method.
        """
        return self._prepare.checked(resolve_method(method, method_options))

    def encode(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        **options: Unpack[EncodeKwargs],
    ) -> TokenizedPrompt:
        """The prompt in tokens, as `generate` sends it; ``len()`` of it is its length.

        Overflow and missing documents are not looked at.
        """
        known = checked_options(options, allowed=EncodeKwargs)
        chosen = self.method if method is None else resolve_method(method)
        return self._prepare.encode(prompt, chosen, known)

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt, as `count_tokens` counts it."""
        return self._prepare.tokenizer.continuation(unmark(text))

    def count_tokens(self, prompt: Prompt | Document, **options: Unpack[EncodeKwargs]) -> int:
        """Count tokens without sending anything.

        A string or a document counts as text inside a prompt: no special tokens, no chat
        template, no markers of documents. A prompt or chat messages count as `generate` would send
        them. For a string as `generate` would send it, take the length of `encode`.
        """
        known = checked_options(options, allowed=EncodeKwargs)
        if isinstance(prompt, str | Document):
            if options:
                raise UnsupportedGenerationError(
                    f"Text counts without {', '.join(options)}: take the length of encode() to "
                    "count it as a prompt."
                )
            return self._prepare.tokenizer.count(prompt)
        return len(self._prepare.encode(prompt, NoMethod(), known))

    def precompute(self, prompts: Sequence[Prompt], **options: Unpack[EncodeKwargs]) -> int:
        """Read the documents of prompts into `document_cache` before anybody asks.

        What is kept is the prompt's prefix and each of its documents behind it; the question is of
        no account, as long as it does not stand in the prefix.

        Args:
            prompts: written as they will be sent.
            options: those of `GenerationOptions` that shape text.

        Returns:
            How many pieces (prefixes and documents) were computed.

        Raises:
            UnsupportedGenerationError: there is no cache, or it cannot serve this model.
        """
        cache = self.document_cache
        if cache is None or not can_reuse_documents(self.model):
            raise UnsupportedGenerationError(
                "Documents are kept in a document_cache: pass RagMiddleModel one."
                if cache is None
                else f"States of documents cannot be reused on this {self.model.config.model_type} "
                "model: it needs rotary positions whose frequencies do not depend on the prompt's "
                "length, and softmax attention without windows in every layer."
            )
        known = checked_options(options, allowed=EncodeKwargs)
        return sum(
            precompute(cache, self.model, self._prepare.encode(prompt, NoMethod(), known))
            for prompt in prompts
        )
