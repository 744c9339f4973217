"""From what a caller writes to what the model is sent: tokens, the method's order, what fits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import (
    ModelTraits,
    in_eval_mode,
    input_device,
    last_token_attention,
    locked,
    model_traits,
    use_kernels,
    vocabulary_size,
)
from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import (
    ContextOverflowError,
    PromptError,
    UnsupportedGenerationError,
)
from rag_middle.generation.effect import check_documents, check_effect, check_numbers
from rag_middle.generation.forward import next_token_logits
from rag_middle.generation.identity import warn_of_mismatch, warn_of_number
from rag_middle.generation.requests import PreparedPrompt
from rag_middle.generation.results import DroppedDocument
from rag_middle.methods import Method, NoMethod, Runner, method_name
from rag_middle.options import GenerationOptions, Kernels
from rag_middle.tokens import TokenizedPrompt, count_tokens, encode
from rag_middle.tokens.encode import Prompt as Text
from rag_middle.tokens.text import TextEncoder

MethodLike = str | Method | Sequence[str | Method]

#: What a request takes: text with document markers, a prompt, chat messages, or tokens.
Prompt = Text | TokenizedPrompt


#: Fast tokenizers switch settings back and forth inside calls, which two threads may not do at a
#: time; models may share one. A template function may use a tokenizer in its turn.
_lock = threading.RLock()

_START_TOKENS = 12  # of a document, in which a number would stand


class LockedTokenizer:
    """A tokenizer that one thread uses at a time. The tokenizer itself is never changed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def encode(self, prompt: Text, **options: Any) -> TokenizedPrompt:
        """The prompt in tokens; options are those of `tokens.encode`."""
        with _lock:
            return encode(self.tokenizer, prompt, **options)

    def continuation(self, text: str) -> tuple[int, ...]:
        """Ids of text that follows a prompt."""
        with _lock:
            return tuple(TextEncoder(self.tokenizer).encode_inert(text, continues=True))

    def count(self, prompt: Text | Document, **options: Any) -> int:
        """Tokens of a prompt, or of text inside one; options are those of `tokens.encode`."""
        with _lock:
            return count_tokens(self.tokenizer, prompt, **options)

    def decode(self, token_ids: Sequence[int], hidden: frozenset[int] | None = None) -> str:
        """Text of generated tokens, spaces kept, without `hidden` ones (None: the special ones)."""
        with _lock:
            text = self.tokenizer.decode(
                [token for token in token_ids if hidden is None or token not in hidden],
                skip_special_tokens=hidden is None,
                clean_up_tokenization_spaces=False,
            )
        return str(text)

    def token_text(self, token_id: int) -> str:
        """What a token adds to a text, special tokens by their name."""
        with _lock:
            # After itself: at the start of a text, some decoders leave out a token's space.
            once, twice = (
                str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
                for ids in ([token_id], [token_id] * 2)
            )
        return twice[len(once) :]


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """`rag_middle.methods.Runner` on a model: each call waits for the model's lock."""

    model: PreTrainedModel
    tokenizer: LockedTokenizer
    method: str  # that asks, for messages
    kernels: Kernels = "auto"

    @property
    def traits(self) -> ModelTraits:
        """What the model is like."""
        return model_traits(self.model)

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        """`[layers, h, l]` in float32: one pass of the unmodified model."""
        ids = torch.tensor([prompt.input_ids], device=input_device(self.model))
        with locked(self.model), in_eval_mode(self.model):
            return last_token_attention(self.model, ids, self.method)

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        """Next-token logits `[v]` in float32 under the plan of `method`."""
        with use_kernels(self.kernels):
            return next_token_logits(self.model, prompt, method or NoMethod())

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt."""
        return self.tokenizer.continuation(text)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Makes requests ready for one model."""

    model: PreTrainedModel
    tokenizer: LockedTokenizer
    context_window: int | None  # in tokens, None where nobody knows
    self_check: bool  # prove of every method new to the model that it takes effect
    kernels: Kernels

    def checked(self, method: Method) -> Method:
        """The method, once it is known to take effect."""
        method.check_fits(model_traits(self.model))
        if self.self_check:
            with use_kernels(self.kernels):
                check_effect(self.model, self.tokenizer.tokenizer, method)
        warn_of_mismatch(self.model, self.tokenizer.tokenizer, method)
        return method

    def prompts(
        self,
        prompts: Sequence[Prompt],
        method: Method,
        options: GenerationOptions,
        new_tokens: Sequence[int] | None = None,
    ) -> list[PreparedPrompt]:
        """Prompts with room for new tokens: so many each, by default as many as are generated.

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
        room = new_tokens or [options.max_new_tokens] * len(prompts)
        return [
            self._prompt(prompt, method, options, room[example], example)
            for example, prompt in enumerate(prompts)
        ]

    def encode(self, prompt: Prompt, method: Method, options: GenerationOptions) -> TokenizedPrompt:
        """The prompt in tokens, its documents in the method's order."""
        return arranged(self._encode(prompt, method, options), method, self.runner(method))

    def continuation(self, text: str | Sequence[int]) -> tuple[int, ...]:
        """Ids of what follows a prompt.

        Raises:
            UnsupportedGenerationError: there are none, or `text` is neither text nor ids.
        """
        if not isinstance(text, Iterable) or not (
            isinstance(text, str) or all(isinstance(token, Integral) for token in text)
        ):
            raise UnsupportedGenerationError(
                f"continuation must be text or a list of token ids, got {text!r:.100}.",
            )
        ids = self.tokenizer.continuation(text) if isinstance(text, str) else tuple(text)
        if not ids:
            raise UnsupportedGenerationError("A continuation needs at least one token.")
        self._check_vocabulary(ids)
        return ids

    def _check_vocabulary(self, ids: Sequence[int]) -> None:
        """Refuse ids the model does not have: on a GPU they would take the process down."""
        tokens = vocabulary_size(self.model)
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
        tokens = self._encode(prompt, method, options)
        self._check_vocabulary(tokens.input_ids)
        if any(part.order_free for part in method.parts):
            starts = (ids[:_START_TOKENS] for ids in tokens.documents_ids)
            check_numbers(method, [self.tokenizer.decode(ids) for ids in starts])
        kept, dropped = fit_to_window(
            tokens,
            max_new_tokens=new_tokens,
            context_window=self.context_window,
            drop_documents=options.on_overflow == "drop_documents",
            example=example,
        )
        # After all that leaves documents out.
        if dropped or not (options.tools and awaits_retrieval(prompt)):
            check_documents(method, kept.layout, options, example, len(dropped))
        warn_of_number(method, len(kept.layout.documents))
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
        return ModelRunner(self.model, self.tokenizer, method_name(method), self.kernels)

    def _encode(
        self, prompt: Prompt, method: Method, options: GenerationOptions
    ) -> TokenizedPrompt:
        _check_type(prompt)
        if isinstance(prompt, TokenizedPrompt):
            if options.shapes_text or (options.tools and not prompt.shows_tools):
                raise UnsupportedGenerationError(
                    "template, system, template_options, allow_control_tokens and tools shape "
                    "text, and this prompt is in tokens already: pass them where it is encoded."
                )
            return method.rewrite(prompt)
        rewrite = method.rewrite if method.rewrites else None
        return self.tokenizer.encode(prompt, rewrite=rewrite, **_shaping(options))

    def count(self, prompt: Prompt | Document, options: GenerationOptions) -> int:
        """Tokens of a prompt as it is sent, or of text inside one."""
        if isinstance(prompt, str | Document):
            return self.tokenizer.count(prompt)
        _check_type(prompt)
        if isinstance(prompt, TokenizedPrompt):
            return len(self._encode(prompt, NoMethod(), options))
        return self.tokenizer.count(prompt, **_shaping(options))


def _shaping(options: GenerationOptions) -> dict[str, Any]:
    """What shapes text, as arguments of `tokens.encode`."""
    names = ("template", "system", "template_options", "allow_control_tokens")
    tools = None if options.tool_choice == "none" else options.tools
    return {**{name: getattr(options, name) for name in names}, "tools": tools}


def arranged(prompt: TokenizedPrompt, method: Method, runner: Runner) -> TokenizedPrompt:
    """The prompt with its documents in the method's order.

    Raises:
        PromptError: the method leaves documents out, or names one twice.
    """
    order = [int(index) for index in method.arrange(prompt, runner)]
    if sorted(order) != list(range(len(prompt.layout.documents))):
        raise PromptError(
            f"{method.name} arranged {len(prompt.layout.documents)} documents as {order}: an order "
            "names each of them once, 0-based. This is a mistake in the method."
        )
    return prompt.select(order)


def branched(
    prompt: TokenizedPrompt, method: Method, runner: Runner
) -> tuple[TokenizedPrompt, ...]:
    """The prompts of the method's forward passes, the arranged one alone for most methods."""
    if not method.combines:
        return (prompt,)
    return tuple(prompt.select(selection) for selection in method.branches(prompt, runner))


def fit_to_window(
    prompt: TokenizedPrompt,
    *,
    max_new_tokens: int,
    context_window: int | None,
    drop_documents: bool,
    example: int = 0,
) -> tuple[TokenizedPrompt, tuple[DroppedDocument, ...]]:
    """The prompt, short enough, and the documents that were left out, in prompt order.

    Documents that would not fit alone go first, then the least relevant ones, of equally relevant
    ones the later. The other documents keep their order.

    Args:
        prompt: in tokens; its scores say which documents matter least.
        max_new_tokens: tokens that must fit after the prompt.
        context_window: tokens that fit, ``None`` where nobody knows.
        drop_documents: leave documents out, rather than refuse.
        example: 0-based index in the batch, for the message.

    Raises:
        ContextOverflowError: the prompt does not fit, with `drop_documents` not even without any.
    """
    if context_window is None:
        return prompt, ()
    excess = len(prompt) + max_new_tokens - context_window
    if excess <= 0:
        return prompt, ()
    lengths = prompt.layout.document_lengths
    if not drop_documents or excess > sum(lengths):
        raise ContextOverflowError(
            prompt_tokens=len(prompt) - (sum(lengths) if drop_documents else 0),
            max_new_tokens=max_new_tokens,
            context_window=context_window,
            example=example,
            without_documents=drop_documents,
        )
    dropped: set[int] = set()
    relevance = prompt.scores
    if relevance is None:  # the earlier, the more relevant
        relevance = tuple(-float(index) for index in range(len(lengths)))
    room = sum(lengths) - excess  # beside the rest of the prompt
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i] <= room, relevance[i], -i)):
        if excess <= 0:
            break
        if lengths[index]:  # leaving an empty document out gains nothing
            dropped.add(index)
            excess -= lengths[index]
    kept = prompt.select(index for index in range(len(lengths)) if index not in dropped)
    return kept, tuple(
        DroppedDocument(index=index, id=prompt.document_ids[index]) for index in sorted(dropped)
    )


def awaits_retrieval(prompt: Prompt) -> bool:
    """Whether tools have returned nothing to this turn yet: documents may still come from them."""
    if isinstance(prompt, str | ContextPrompt | TokenizedPrompt) or not prompt:
        return True
    return prompt[-1].get("role") != "tool"


def _check_type(prompt: object) -> None:
    """Raise `PromptError` unless `prompt` is of a type that requests take."""
    if isinstance(prompt, str | ContextPrompt | TokenizedPrompt):
        return
    if not isinstance(prompt, Sequence) or any(not isinstance(item, Mapping) for item in prompt):
        raise PromptError(
            "A prompt is a string, a ContextPrompt, a list of chat messages or a TokenizedPrompt, "
            f"got {type(prompt).__name__}. Several prompts go through batch()."
        )
