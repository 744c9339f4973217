"""RagMiddleModel: a model, its tokenizer and a method, behind a few calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import model_traits
from rag_middle.documents import Document
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.generation import engine, scoring
from rag_middle.generation.effect import acts_on, check_documents, check_effect, method_name
from rag_middle.generation.engine import PreparedPrompt
from rag_middle.generation.loading import load_model, load_tokenizer
from rag_middle.generation.options import (
    GenerationKwargs,
    GenerationOptions,
    PromptKwargs,
    checked_options,
)
from rag_middle.generation.overflow import fitted
from rag_middle.generation.results import Generation, Score
from rag_middle.generation.streaming import GenerationStream
from rag_middle.generation.tokenizing import LockedTokenizer, Prompt, arranged, relevance
from rag_middle.methods import Method, resolve_method
from rag_middle.tokens import TokenizedPrompt

__all__ = ["MethodLike", "RagMiddleModel"]

MethodLike = str | Method | Sequence[str | Method]

T = TypeVar("T")


class RagMiddleModel:
    """A causal language model that reads marked documents under a method.

    Prompts are strings with document markers, `ContextPrompt`, chat messages or `TokenizedPrompt`.
    Every call may choose another method; nothing of a request stays on the model. Any number of
    threads may call: requests on one model take turns.

    Args:
        model: a loaded Hugging Face causal language model. It is used where it is and as it is.
        tokenizer: its tokenizer; never changed.
        method: a name, a preset (``"positional_hidden_states:llama-2-7b-chat"``), a composition
            (``"lpes+siw"``, a list) or a method object.
        method_options: the method's parameters, where `method` is a name.
        context_window: tokens that prompt and answer may have together, instead of what the
            model's config says (a method that rescales positions may reach further).
        self_check: run the model on a few random tokens with every method that is new to it, and
            raise if the method changes nothing.

    Raises:
        UnknownNameError: no such method.
        MethodConfigError: parameters the method refuses, or that do not fit the model.
        UnsupportedArchitectureError: the model cannot take the method; says what to use instead.
        PatchIneffectiveError: the method leaves the model's logits as they are.
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
    ) -> None:
        if not model.can_generate():
            raise UnsupportedGenerationError(
                f"{type(model).__name__} has no language-modelling head to generate with: load it "
                "with AutoModelForCausalLM."
            )
        self.model = model
        self.tokenizer = tokenizer
        self._tokenizer = LockedTokenizer(tokenizer)
        self._self_check = self_check
        self.method = self._checked(resolve_method(method, method_options))
        self.context_window = (
            model_traits(model).context_window if context_window is None else context_window
        )

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        method: MethodLike = "none",
        method_options: Mapping[str, Any] | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        device_map: str | Mapping[str, Any] | None = None,
        quantization_config: Any | None = None,
        attn_implementation: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
        context_window: int | None = None,
        self_check: bool = True,
        model_options: Mapping[str, Any] | None = None,
        tokenizer_options: Mapping[str, Any] | None = None,
    ) -> RagMiddleModel:
        """Load a model from a directory, the local cache or the Hugging Face hub.

        Args:
            name_or_path: a directory, or a name on the hub.
            method: as for the class, like `method_options`, `context_window` and `self_check`.
            method_options: see there.
            dtype: ``"auto"`` for the checkpoint's own, or ``"float32"``, ``"bfloat16"``, ...
            device: where the whole model goes; by default a GPU if there is one, else the CPU.
            device_map: how to spread it instead (``"auto"``); needs the accelerate package.
            quantization_config: e.g. a transformers ``BitsAndBytesConfig``.
            attn_implementation: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"``, ...; where a
                flash attention is not installed, sdpa runs and a warning says so.
            revision: branch, tag or commit on the hub, for model and tokenizer.
            trust_remote_code: run code that comes with the model.
            tokenizer: a tokenizer, or where to load it from; by default `name_or_path`.
            context_window: see the class.
            self_check: see the class.
            model_options: more arguments for ``AutoModelForCausalLM.from_pretrained``.
            tokenizer_options: more arguments for ``AutoTokenizer.from_pretrained``.

        Raises:
            ModelNotFoundError: neither here nor to be fetched.
            UnsupportedGenerationError: arguments that contradict each other, or a device that is
                not there.
        """
        chosen = resolve_method(method, method_options)  # a misspelt name costs no loading
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            tokenizer = load_tokenizer(
                name_or_path if tokenizer is None else tokenizer,
                revision=revision if tokenizer is None else None,
                trust_remote_code=trust_remote_code,
                options=tokenizer_options or {},
            )
        model = load_model(
            name_or_path,
            dtype=dtype,
            device=device,
            device_map=device_map,
            quantization_config=quantization_config,
            attn_implementation=attn_implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
            options=model_options or {},
        )
        return cls(
            model, tokenizer, method=chosen, context_window=context_window, self_check=self_check
        )

    @property
    def device(self) -> torch.device:
        """Where token ids go in; the other layers may be elsewhere."""
        return engine.device_of(self.model)

    # -- text ---------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> Generation:
        """Generate text for one prompt.

        Args:
            prompt: see the class.
            method: for this call, instead of the model's.
            method_options: its parameters.
            options: fields of `GenerationOptions`: ``max_new_tokens``, ``temperature``, ``top_p``,
                ``top_k``, ``repetition_penalty``, ``num_beams``, ``seed``, ``stop``, ...

        Raises:
            UnsupportedGenerationError: options that do not exist, make no sense or cannot be
                served.
            ContextOverflowError: the prompt does not fit.
            PromptError: the prompt cannot be turned into tokens, or has no documents where
                ``on_missing_documents="error"``.
            MarkerError: document markers are unbalanced, nested or stray.
        """
        return self._batch([prompt], method, method_options, options, max_batch_size=1)[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[GenerationKwargs],
    ) -> list[Generation]:
        """Generate for several prompts, several at a time in each forward pass.

        Prompts of similar length go together; results come in the order of the prompts.

        Args:
            prompts: any number.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            max_batch_size: prompts per forward pass; memory grows with it.
            options: as for `generate`, the same for all prompts; ``seed`` may be one per prompt.

        Raises:
            As for `generate`; nothing is generated where any prompt is refused.
        """
        return self._batch(prompts, method, method_options, options, max_batch_size=max_batch_size)

    def stream(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[GenerationKwargs],
    ) -> GenerationStream:
        """Generate text for one prompt, piece by piece.

        What may be the beginning of a stop string, or of a character of several tokens, is held
        back until it is known. Arguments are those of `generate`, and so are the errors; they are
        raised here, before anything runs.

        Raises:
            UnsupportedGenerationError: also for beams, which are only known at the end.
        """
        chosen, known, seeds = self._request(method, method_options, options, 1)
        if known.num_beams > 1:
            raise UnsupportedGenerationError(
                f"A search with {known.num_beams} beams knows its text only at the end: use "
                "generate(), or num_beams=1."
            )
        prepared = self._prepared(prompt, chosen, known, known.max_new_tokens)
        model, tokenizer = self.model, self._tokenizer

        def work(emit: Callable[[str], None], stopped: threading.Event) -> Generation:
            return engine.generate(
                model,
                tokenizer,
                [prepared],
                chosen,
                known,
                seeds=seeds,
                stopped=stopped,
                on_text=emit,
            )[0]

        return GenerationStream(work)

    # -- numbers ------------------------------------------------------------------------------

    def score(
        self,
        prompt: Prompt,
        continuation: str | Sequence[int],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[PromptKwargs],
    ) -> Score:
        """How likely the model finds `continuation` after the prompt.

        Args:
            prompt: see the class.
            continuation: text (give the space it begins with, if any) or token ids.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            options: those of `GenerationOptions` that shape the prompt.
        """
        return self.score_batch(
            [prompt], [continuation], method=method, method_options=method_options, **options
        )[0]

    def score_batch(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[str | Sequence[int]],
        *,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 8,
        **options: Unpack[PromptKwargs],
    ) -> list[Score]:
        """`score` for each pair of prompt and continuation, several in each forward pass.

        Repeat a prompt to compare continuations of it.
        """
        if len(prompts) != len(continuations):
            raise UnsupportedGenerationError(
                f"Give one continuation per prompt: there are {len(continuations)} for "
                f"{len(prompts)} prompts."
            )
        known = checked_options(options, allowed=PromptKwargs)
        chosen = self._chosen(method, method_options)
        ids = [self._continuation(text) for text in continuations]
        prepared = [
            self._prepared(prompt, chosen, known, len(ids[index]), index)
            for index, prompt in enumerate(prompts)
        ]

        def run(group: list[int]) -> list[Score]:
            tokens = [prepared[index].tokens for index in group]
            wanted = [ids[index] for index in group]
            found = scoring.continuation_log_probabilities(self.model, tokens, wanted, chosen)
            return [
                Score(
                    token_ids=token_ids,
                    log_probabilities=log_probabilities,
                    is_greedy=is_greedy,
                    prompt_tokens=len(prompt),
                    method=method_name(chosen),
                    applied=acts_on(chosen, prompt.layout),
                )
                for prompt, token_ids, (log_probabilities, is_greedy) in zip(
                    tokens, wanted, found, strict=True
                )
            ]

        return _in_groups([len(each.tokens) for each in prepared], max_batch_size, run)

    def logits(
        self,
        prompt: Prompt,
        *,
        all_positions: bool = False,
        method: MethodLike | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Unpack[PromptKwargs],
    ) -> Tensor:
        """Logits of the next token, float32, on the model's device.

        Args:
            prompt: see the class.
            all_positions: after every prompt token instead of the last one.
            method: as for `generate`, like `method_options`.
            method_options: see there.
            options: those of `GenerationOptions` that shape the prompt.

        Returns:
            `[v]`, or `[l, v]` for all positions.
        """
        known = checked_options(options, allowed=PromptKwargs)
        chosen = self._chosen(method, method_options)
        prepared = self._prepared(prompt, chosen, known, max_new_tokens=0)
        return scoring.prompt_logits(
            self.model, prepared.tokens, chosen, all_positions=all_positions
        )

    # -- tokens -------------------------------------------------------------------------------

    def encode(
        self,
        prompt: Prompt,
        *,
        method: MethodLike | None = None,
        **options: Unpack[PromptKwargs],
    ) -> TokenizedPrompt:
        """The prompt in tokens, as `generate` sends it; ``len()`` of it is its length.

        Overflow and missing documents are not looked at.
        """
        known = checked_options(options, allowed=PromptKwargs)
        chosen = self.method if method is None else resolve_method(method)
        return self._encode(arranged(prompt, chosen), known)

    def count_tokens(self, prompt: Prompt | Document, **options: Unpack[PromptKwargs]) -> int:
        """Count tokens without sending anything.

        A string or a document counts as text inside a prompt: no special tokens, no chat
        template. A prompt or chat messages count as `generate` would send them. For a string as
        `generate` would send it, take the length of `encode`.
        """
        known = checked_options(options, allowed=PromptKwargs)
        if isinstance(prompt, str | Document | TokenizedPrompt):
            return self._tokenizer.count(prompt)
        return len(self._encode(prompt, known))

    # -- what the calls share -----------------------------------------------------------------

    def _batch(
        self,
        prompts: Sequence[Prompt],
        method: MethodLike | None,
        method_options: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        *,
        max_batch_size: int,
    ) -> list[Generation]:
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise UnsupportedGenerationError(
                f"batch() takes a list of prompts, got {type(prompts).__name__}: use generate() "
                "for one."
            )
        chosen, known, seeds = self._request(method, method_options, options, len(prompts))
        prepared = [
            self._prepared(prompt, chosen, known, known.max_new_tokens, index)
            for index, prompt in enumerate(prompts)
        ]

        def run(group: list[int]) -> list[Generation]:
            return engine.generate(
                self.model,
                self._tokenizer,
                [prepared[index] for index in group],
                chosen,
                known,
                seeds=[seeds[index] for index in group],
            )

        return _in_groups([len(each.tokens) for each in prepared], max_batch_size, run)

    def _request(
        self,
        method: MethodLike | None,
        method_options: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        prompts: int,
    ) -> tuple[Method, GenerationOptions, tuple[int | None, ...]]:
        known = checked_options(options, allowed=GenerationKwargs)
        return self._chosen(method, method_options), known, known.seeds(prompts)

    def _chosen(
        self, method: MethodLike | None, method_options: Mapping[str, Any] | None
    ) -> Method:
        if method is not None:
            return self._checked(resolve_method(method, method_options))
        if method_options:
            raise MethodConfigError(
                f"Options {sorted(method_options)} were given without a method: name it too."
            )
        return self.method

    def _checked(self, method: Method) -> Method:
        if self._self_check:
            check_effect(self.model, self.tokenizer, method)
        return method

    def _prepared(
        self,
        prompt: Prompt,
        method: Method,
        options: GenerationOptions,
        max_new_tokens: int,
        example: int = 0,
    ) -> PreparedPrompt:
        started = perf_counter()
        ordered = arranged(prompt, method)
        tokens = self._encode(ordered, options)
        check_documents(method, tokens.layout, options.on_missing_documents, example)
        kept, dropped = fitted(
            tokens,
            relevance(ordered, len(tokens.layout.documents)),
            max_new_tokens=max_new_tokens,
            context_window=self.context_window,
            drop_documents=options.on_overflow == "drop_documents",
            example=example,
        )
        return PreparedPrompt(tokens=kept, dropped=dropped, seconds=perf_counter() - started)

    def _encode(self, prompt: Prompt, options: GenerationOptions) -> TokenizedPrompt:
        return self._tokenizer.encode(
            prompt,
            template=options.template,
            system=options.system,
            template_options=options.template_options,
            allow_control_tokens=options.allow_control_tokens,
        )

    def _continuation(self, text: str | Sequence[int]) -> tuple[int, ...]:
        ids = self._tokenizer.continuation(text) if isinstance(text, str) else tuple(text)
        if not ids:
            raise UnsupportedGenerationError("A continuation needs at least one token.")
        return ids


def _in_groups(
    lengths: Sequence[int], max_batch_size: int, run: Callable[[list[int]], list[T]]
) -> list[T]:
    """Results of `run` for groups of indices of similar length, in the order of the indices."""
    if not isinstance(max_batch_size, int) or max_batch_size < 1:
        raise UnsupportedGenerationError(
            f"max_batch_size must be a whole number, at least 1, got {max_batch_size!r}."
        )
    results: dict[int, T] = {}
    for group in _groups(lengths, max_batch_size):
        results.update(zip(group, run(group), strict=True))
    return [results[index] for index in range(len(lengths))]


def _groups(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    by_length = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]
