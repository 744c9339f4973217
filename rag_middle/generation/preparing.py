"""From what a caller writes to what the model is sent: method, tokens, what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import model_traits
from rag_middle.errors import MethodConfigError, PromptError, UnsupportedGenerationError
from rag_middle.generation.branches import arranged, branched
from rag_middle.generation.effect import check_documents, check_effect, method_name
from rag_middle.generation.facts import vocabulary_size
from rag_middle.generation.identity import check_profiles
from rag_middle.generation.options import GenerationOptions
from rag_middle.generation.overflow import fitted
from rag_middle.generation.results import DroppedDocument
from rag_middle.generation.runner import ModelRunner
from rag_middle.generation.tokenizing import LockedTokenizer, Prompt, check_prompt
from rag_middle.methods import Method, resolve_method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["MethodLike", "PreparedPrompt", "Preparer"]

MethodLike = str | Method | Sequence[str | Method]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt ready to be sent.

    Attributes:
        tokens: that fit the context window, documents in the method's order.
        branches: what the forward passes read; `tokens` alone for most methods.
        dropped: documents left out for that.
        seconds: spent on it, a method's look at the model included.
    """

    tokens: TokenizedPrompt
    branches: tuple[TokenizedPrompt, ...]
    dropped: tuple[DroppedDocument, ...]
    seconds: float


class Preparer:
    """Makes requests ready for one model.

    Args:
        model: that they will run on.
        tokenizer: of the model.
        context_window: tokens that fit, ``None`` where nobody knows.
        self_check: prove of every method new to the model that it takes effect.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context_window: int | None,
        self_check: bool,
    ) -> None:
        self.tokenizer = LockedTokenizer(tokenizer)
        self._model = model
        self.context_window = context_window
        self._self_check = self_check

    def method(
        self,
        method: MethodLike | None,
        options: Mapping[str, Any] | None,
        *,
        default: Method,
    ) -> Method:
        """The method of a call: its own, or the default one."""
        if method is not None:
            return self.checked(resolve_method(method, options))
        if options:
            raise MethodConfigError(
                f"Options {sorted(options)} were given without a method: name it too."
            )
        return default

    def checked(self, method: Method) -> Method:
        """The method, once it is known to take effect."""
        method.check_fits(model_traits(self._model))
        if self._self_check:
            check_effect(self._model, self.tokenizer.tokenizer, method)
        check_profiles(self._model, self.tokenizer.tokenizer, method)
        return method

    def prompts(
        self,
        prompts: Sequence[Prompt],
        method: Method,
        options: GenerationOptions,
        new_tokens: int | Sequence[int],
    ) -> list[PreparedPrompt]:
        """Prompts with room for new tokens, one number for all or one each; in order.

        Raises:
            ContextOverflowError: a prompt does not fit.
            PromptError: a prompt cannot be turned into tokens, or has no documents where that is
                refused.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise UnsupportedGenerationError(
                f"A list of prompts is expected, got {type(prompts).__name__}: use generate() or "
                "score() for a single one."
            )
        room = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
        return [
            self._prompt(prompt, method, options, room[example], example)
            for example, prompt in enumerate(prompts)
        ]

    def encode(self, prompt: Prompt, method: Method, options: GenerationOptions) -> TokenizedPrompt:
        """The prompt in tokens, its documents in the method's order."""
        return arranged(self._encode(prompt, options), method, self.runner(method))

    def continuation(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """Ids of what follows a prompt.

        Raises:
            UnsupportedGenerationError: there are none.
        """
        ids = self.tokenizer.continuation(text) if isinstance(text, str) else tuple(text)
        if not ids:
            raise UnsupportedGenerationError("A continuation needs at least one token.")
        self._check_vocabulary(ids)
        return ids

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        """Refuse ids the model does not have: on a GPU they would take the process down."""
        tokens = vocabulary_size(self._model)
        outside = [token for token in ids if not 0 <= token < tokens]
        if outside:
            raise PromptError(
                f"Token {outside[0]} is not among the model's {tokens}. Is this the model's own "
                "tokenizer? If tokens were added to it, call model.resize_token_embeddings()."
            )

    def _prompt(
        self,
        prompt: Prompt,
        method: Method,
        options: GenerationOptions,
        new_tokens: int,
        example: int,
    ) -> PreparedPrompt:
        started = perf_counter()
        tokens = self._encode(prompt, options)
        self._check_vocabulary(tokens.input_ids)
        check_documents(method, tokens.layout, options.on_missing_documents, example)
        kept, dropped = fitted(
            tokens,
            max_new_tokens=new_tokens,
            context_window=self.context_window,
            drop_documents=options.on_overflow == "drop_documents",
            example=example,
        )
        runner = self.runner(method)
        ordered = arranged(kept, method, runner)
        return PreparedPrompt(
            tokens=ordered,
            branches=branched(ordered, method, runner),
            dropped=dropped,
            seconds=perf_counter() - started,
        )

    def runner(self, method: Method) -> ModelRunner:
        """What the method may do with the model while it arranges documents."""
        return ModelRunner(self._model, self.tokenizer, method_name(method))

    def _encode(self, prompt: Prompt, options: GenerationOptions) -> TokenizedPrompt:
        check_prompt(prompt)
        if isinstance(prompt, TokenizedPrompt):
            if options.shapes_text:
                raise UnsupportedGenerationError(
                    "template, system, template_options and allow_control_tokens shape text, and "
                    "this prompt is in tokens already: pass them where it is encoded."
                )
            return prompt
        return self.tokenizer.encode(
            prompt,
            template=options.template,
            system=options.system,
            template_options=options.template_options,
            allow_control_tokens=options.allow_control_tokens,
        )
