"""RagMiddleModel: a model, its tokenizer and a method, behind a few calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rag_middle.attention import input_device, model_lock, model_traits, use_kernels
from rag_middle.documents import Document, unmark
from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.generation import engine, forward
from rag_middle.generation.identity import model_identity, software, warn_of_mismatch
from rag_middle.generation.loading import (
    LoadingKwargs,
    check_loading,
    load_model,
    load_tokenizer,
)
from rag_middle.generation.prompts import (
    LockedTokenizer,
    MethodLike,
    Preparer,
    Prompt,
)
from rag_middle.generation.requests import GenerationRequest, in_groups
from rag_middle.generation.results import Generation, Score
from rag_middle.generation.streaming import Follower, GenerationStream
from rag_middle.generation.tool_use import constraint_of, reads_calls, tool_reader
from rag_middle.methods import Method, NoMethod, Runner, resolve_method
from rag_middle.methods.document_blocks.document_cache import (
    DocumentCache,
    can_reuse_states,
    precompute,
)
from rag_middle.model_files import format_errors
from rag_middle.options import (
    KERNELS,
    EncodeKwargs,
    GenerationKwargs,
    Kernels,
    PromptKwargs,
    check_context_window,
    checked_options,
    unknown_option,
)
from rag_middle.plain_data import check_keywords
from rag_middle.small_model import NAME, default_model
from rag_middle.tokens import TokenizedPrompt
from rag_middle.wording import shortened


class MethodKwargs(TypedDict, total=False):
    """A method for one call, instead of the model's, and its parameters where it is a name."""

    method: MethodLike | None
    method_options: Mapping[str, Any] | None


class GenerateKwargs(MethodKwargs, GenerationKwargs, total=False):
    """Keyword arguments of calls that generate."""


class ScoreKwargs(MethodKwargs, PromptKwargs, total=False):
    """Keyword arguments of calls that only read."""


class TextGenerator(Protocol):
    """A model that answers prompts: `RagMiddleModel`, or one behind an HTTP address.

    Nothing here needs the weights. What does (log-likelihoods, lengths in tokens, times and
    memory) is for `RagMiddleModel` only.
    """

    @property
    def method(self) -> Method:
        """What calls run under that name no method of their own."""

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together; ``None`` where nobody knows."""

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Generation:
        """Generate text for one prompt."""

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        max_batch_size: int = 8,
        **options: Unpack[GenerateKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """Generate for several prompts: 0-based index of each and its text, as they come."""

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> GenerationStream:
        """Generate text for one prompt, piece by piece."""

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object that can be used with this model, or an error that says why not."""

    def identity(self) -> dict[str, Any]:
        """What tells this model from others, JSON-ready; ``name`` is for people."""

    def software(self) -> dict[str, str]:
        """Versions of what it runs on, and ``device``."""


class ModelKwargs(TypedDict, total=False):
    """What `RagMiddleModel` takes beside model and tokenizer."""

    method: MethodLike
    method_options: Mapping[str, Any] | None
    context_window: int | None
    self_check: bool
    document_cache: DocumentCache | None
    kernels: Kernels


class FromPretrainedKwargs(ModelKwargs, LoadingKwargs, total=False):
    """The same, and how model and tokenizer are loaded."""


def checked_arguments(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of `RagMiddleModel.from_pretrained`: those of the class, and those of loading.

    A mistake that can be seen in them costs no loading.

    Raises:
        MethodConfigError: the method or its options.
        UnsupportedGenerationError: another option is unknown, or cannot be served.
    """
    own = {**options}
    for name in own:
        if name not in FromPretrainedKwargs.__annotations__:
            raise unknown_option(name, FromPretrainedKwargs.__annotations__)
    own["method"] = resolve_method(own.pop("method", "none"), own.pop("method_options", None))
    check_context_window(own.get("context_window"))
    loading = {name: own.pop(name) for name in LoadingKwargs.__annotations__ if name in own}
    check_loading(loading)
    return own, loading


class RagMiddleModel:
    """A causal language model that reads marked documents under a method.

    Prompts are strings with document markers, `ContextPrompt`, chat messages or `TokenizedPrompt`.
    Every call may choose another method; nothing of a request stays on the model. Any number of
    threads may call: requests on one model take turns.

    Args:
        model: a loaded Hugging Face causal language model. It is used where it is and as it is.
        tokenizer: its tokenizer; never changed.
        method: a name, a preset (``"positional_hidden_states:llama-2-7b-chat"``), a composition
            (``"ms_poe+siw"``, a list) or a method object.
        method_options: the method's parameters, where `method` is a name.
        context_window: tokens that prompt and answer may have together, instead of what the
            model's config says, RoPE scaling included (a method that rescales positions may reach
            further).
        self_check: run the model on a few random tokens with every method that is new to it, and
            raise if the method changes nothing.
        document_cache: documents that were read before, for methods under which they do not see
            each other (`parallel_context_windows`, `ape`): only what is new goes through the
            model. Prompts then go one at a time.
        kernels: what computes a method's attention. ``"auto"``: its Triton kernels, if it has
            some (pine, rotor), on a GPU in half precision, else PyTorch's operators.
            ``"triton"``: those, or an error. ``"torch"``: never Triton. Other wrappers of `model`
            make their own choice.

    Raises:
        ConfigError: kernels that cannot run here, or that the method does not have.
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
        document_cache: DocumentCache | None = None,
        kernels: Kernels = "auto",
    ) -> None:
        for name, value, has in (
            ("model", model, "can_generate"),  # wrappers (PEFT) have it too
            ("tokenizer", tokenizer, "apply_chat_template"),
        ):
            if not callable(getattr(value, has, None)):
                raise UnsupportedGenerationError(
                    f"{name} must be a loaded one of transformers, got {shortened(repr(value))}. "
                    "RagMiddleModel.from_pretrained loads both by name.",
                )
        if model.config.is_encoder_decoder or not model.can_generate():
            raise UnsupportedGenerationError(
                f"{type(model).__name__} is no decoder with a language-modelling head: load one "
                "with AutoModelForCausalLM."
            )
        check_context_window(context_window)
        KERNELS.check(kernels)
        self._kernels = kernels
        self.model = model
        self.tokenizer = tokenizer
        self.document_cache = document_cache
        traits = model_traits(model)
        window = traits.context_window if context_window is None else context_window
        self._prepare = Preparer(model, LockedTokenizer(tokenizer), window, self_check, kernels)
        self._method = self.checked_method(method, method_options)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, **options: Unpack[FromPretrainedKwargs]
    ) -> RagMiddleModel:
        """Load a model from a directory, the local cache or the Hugging Face hub.

        Args:
            name_or_path: a directory, a name on the hub, a GGUF file, or SmolLM2-135M-Instruct.
            options: those of the class (``method``, ``method_options``, ``context_window``,
                ``self_check``, ``document_cache``, ``kernels``), and:

                ``dtype``: ``"auto"`` for the checkpoint's own (of a GGUF file, float32), or
                ``"float32"``, ``"bfloat16"``, ...

                ``device``: where the whole model goes; by default a GPU if there is one, else the
                CPU. ``device_map``: how to spread it instead (``"auto"``); needs the accelerate
                package.

                ``quantization_config``: ``"4bit"`` or ``"8bit"`` (needs bitsandbytes and a CUDA
                GPU), or a configuration of transformers.

                ``attn_implementation``: ``"sdpa"``, ``"eager"``, ``"flash_attention_2"``, ...;
                where a flash attention is not installed, sdpa runs and a warning says so.

                ``revision``: branch, tag or commit on the hub, for model and tokenizer.

                ``gguf_file``: a GGUF file in the directory or on the hub (needs the extra gguf). It
                is dequantised once and kept in the user's cache.

                ``trust_remote_code``: run code that comes with the model.

                ``tokenizer``: a tokenizer, or where to load it from; by default `name_or_path`.

                ``model_options``, ``tokenizer_options``: more arguments for ``from_pretrained`` of
                ``AutoModelForCausalLM`` and ``AutoTokenizer``.

        Raises:
            ModelNotFoundError: neither here nor to be fetched.
            FileFormatError: a file of it is damaged.
            UnsupportedGenerationError: arguments that contradict each other, or a device that is
                not there.
        """
        own, loading = checked_arguments(options)
        if str(name_or_path) == NAME and not os.path.exists(name_or_path):  # without its owner
            name_or_path = default_model()
        tokenizer = load_tokenizer(name_or_path, loading)
        model = load_model(name_or_path, loading)
        with format_errors(str(name_or_path), "config.json"):
            model_traits(model)  # its first pass
        return cls(model, tokenizer, **own)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> Generation:
        """Generate text for one prompt.

        Args:
            prompt: see `RagMiddleModel`.
            options: ``method`` and ``method_options`` for this call, instead of the model's, and
                fields of `GenerationOptions`: ``max_new_tokens``, ``temperature``, ``top_p``,
                ``top_k``, ``repetition_penalty``, ``num_beams``, ``seed``, ``stop``, ...

        Raises:
            UnsupportedGenerationError: options that do not exist, make no sense or cannot be
                served.
            ContextOverflowError: the prompt does not fit.
            PromptError: the prompt cannot be turned into tokens, or has no documents where
                ``on_missing_documents="error"``.
            MarkerError: marked documents do not stand together.
        """
        return self._generated(self._generation([prompt], options))[0]

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        max_batch_size: int = 8,
        followers: Sequence[Follower] | None = None,
        **options: Unpack[GenerateKwargs],
    ) -> list[Generation]:
        """Generate for several prompts, several at a time in each forward pass.

        Prompts of similar length go together; results come in the order of the prompts. They are
        what each prompt gets alone, up to how floats are rounded: in half precision, a row beside
        longer ones may fall otherwise where two tokens are nearly as likely.

        Args:
            prompts: any number.
            max_batch_size: prompts per forward pass; memory grows with it. Where a method combines
                several passes per prompt, each of them counts.
            followers: one per prompt, who gets its text as it comes and may end it.
            options: as for `generate`, the same for all prompts; ``seed`` may be one per prompt.

        Raises:
            RagMiddleError: as for `generate`; nothing is generated where any prompt is refused.
            UnsupportedGenerationError: also for followers of beams, or not one per prompt.
        """
        request = self._generation(prompts, options)
        beams = request.options.num_beams
        if followers is not None and (len(followers) != len(prompts) or beams > 1):
            raise UnsupportedGenerationError(
                f"There are {len(followers)} followers for {len(prompts)} prompts with {beams} "
                "beams: give one per prompt, and num_beams=1 (--beams 1), as beams know their text "
                "only at the end.",
            )
        request = replace(request, followers=followers or ())
        return in_groups(self.model, request, max_batch_size, self._generated)

    def as_completed(
        self,
        prompts: Sequence[Prompt],
        *,
        max_batch_size: int = 8,
        **options: Unpack[GenerateKwargs],
    ) -> Iterator[tuple[int, Generation]]:
        """Like `batch`, as pairs of a prompt's 0-based index and its text.

        Models behind an HTTP address yield each as it comes; here they come together.
        """
        yield from enumerate(self.batch(prompts, max_batch_size=max_batch_size, **options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerateKwargs]) -> GenerationStream:
        """Generate text for one prompt, piece by piece.

        What may be the beginning of a stop string, or of a character of several tokens, is held
        back until the next token decides. Arguments are those of `generate`, and so are the
        errors; they are raised here, before anything runs.

        Raises:
            UnsupportedGenerationError: also for beams, which are only known at the end.
            MethodConfigError: also in a block of `applied` on this model.
        """
        # Not `self`: the thread must not keep alive what only the stream's owner needs.
        model, tokenizer = self.model, self._prepare.tokenizer

        if model_lock(model)._is_owned():  # type: ignore[attr-defined]  # as Condition asks
            raise MethodConfigError(
                "A stream generates in a thread of its own, which would wait for this block "
                "to end. Leave the applied() block first, or call generate()."
            )
        request = self._generation([prompt], options)
        if request.options.num_beams > 1:
            raise UnsupportedGenerationError(
                f"A search with {request.options.num_beams} beams knows its text only at the end: "
                "use generate(), or num_beams=1 (--beams 1)."
            )

        def work(emit: Callable[[str], None], stopped: threading.Event) -> Generation:
            follower = Follower(on_text=lambda text, _: emit(text), cancel=stopped)
            return engine.generate(model, tokenizer, replace(request, followers=[follower]))[0]

        ids = request.prompts[0].tokens.document_ids
        return GenerationStream(work, document_ids=ids)

    def _generated(self, request: GenerationRequest) -> list[Generation]:
        return engine.generate(self.model, self._prepare.tokenizer, request)

    def _generation(self, prompts: Sequence[Prompt], options: GenerateKwargs) -> GenerationRequest:
        request = self._request(prompts, options, GenerationKwargs)
        reader = tool_reader(self.tokenizer, request.options)
        constraint = constraint_of(self.model, self.tokenizer, request.options, reader)
        return replace(request, reader=reader, constraint=constraint)

    def _request(
        self,
        prompts: Sequence[Prompt],
        options: MethodKwargs,
        allowed: type[Any],
        continuations: Sequence[Sequence[int]] | None = None,
    ) -> GenerationRequest:
        """A request with the `allowed` options; one for scores has continuations."""
        others: dict[str, Any] = {**options}
        method, method_options = (others.pop(name, None) for name in ("method", "method_options"))
        settings = checked_options(others, allowed=allowed)
        chosen = self.method
        if method is not None:
            chosen = self.checked_method(method, method_options)
        elif method_options:
            check_keywords("method_options", method_options, MethodConfigError)
            raise MethodConfigError(
                f"Options {sorted(method_options)} were given without a method: name it too."
            )
        else:  # adapters may be switched since the model was put together
            warn_of_mismatch(self.model, self.tokenizer, chosen)
        room = None
        if continuations is not None:  # the last token is not read
            room = [max(len(ids) - 1, 0) for ids in continuations]
        return GenerationRequest(
            prompts=self._prepare.prompts(prompts, chosen, settings, room),
            method=chosen,
            options=settings,
            seeds=settings.seeds(len(prompts)),
            kernels=self._kernels,
            document_cache=self.document_cache,
            continuations=continuations or (),
        )

    def score(
        self,
        prompt: Prompt,
        continuation: str | Sequence[int],
        **options: Unpack[ScoreKwargs],
    ) -> Score:
        """How likely the model finds `continuation` after the prompt.

        Args:
            prompt: see `RagMiddleModel`.
            continuation: text (give the space it begins with, if any) or token ids.
            options: ``method`` and ``method_options`` as for `generate`, and those of
                `GenerationOptions` that shape the prompt.

        Raises:
            UnsupportedGenerationError: also for several tokens after the virtual tokens of prompt
                or prefix tuning, which the model would put before the continuation again.
        """
        return self.score_batch([prompt], [continuation], max_batch_size=1, **options)[0]

    def score_batch(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[str | Sequence[int]],
        *,
        max_batch_size: int = 8,
        **options: Unpack[ScoreKwargs],
    ) -> list[Score]:
        """`score` for each pair of prompt and continuation, several in each forward pass.

        Repeat a prompt to compare continuations of it.
        """
        if len(prompts) != len(continuations):
            raise UnsupportedGenerationError(
                f"Give one continuation per prompt: there are {len(continuations)} for "
                f"{len(prompts)} prompts."
            )
        ids = [self._prepare.continuation(text) for text in continuations]
        request = self._request(prompts, options, PromptKwargs, ids)
        score = partial(forward.continuation_scores, self.model)
        return in_groups(self.model, request, max_batch_size, score)

    def logits(
        self,
        prompt: Prompt,
        *,
        all_positions: bool = False,
        **options: Unpack[ScoreKwargs],
    ) -> Tensor:
        """Logits of the next token, float32, on the model's device.

        Args:
            prompt: see the class.
            all_positions: after every prompt token instead of the last one; not for methods that
                combine several forward passes, whose prompts differ.
            options: as for `score`.

        Returns:
            `[v]`, or `[l, v]` for all positions.
        """
        request = self._request([prompt], options, PromptKwargs, [()])
        return forward.prompt_logits(self.model, request, all_positions=all_positions)

    @property
    def method(self) -> Method:
        """What calls run under that name no method of their own."""
        return self._method

    @property
    def context_window(self) -> int | None:
        """Tokens that prompt and answer may have together; ``None`` where nobody knows."""
        return self._prepare.context_window

    @property
    def calls_tools(self) -> bool:
        """Whether the chat template shows tools, and the calls of this family can be read."""
        return reads_calls(self.tokenizer)

    @property
    def kernels(self) -> Kernels:
        """What may compute a method's attention; `kernels` of a result says what did."""
        return self._kernels

    @property
    def device(self) -> torch.device:
        """Where token ids go in; the other layers may be elsewhere."""
        return input_device(self.model)

    @property
    def runner(self) -> Runner:
        """Runs the model as methods do that look at prompts before they answer."""
        return self._prepare.runner(NoMethod())

    def identity(self) -> dict[str, Any]:
        """What tells this model from others: name, revision, type, number format, and digests.

        A model from a folder goes by the folder's name, without its path. The digest of the weights
        takes a few values of every parameter, so that another training of a model under the same
        name is noticed; it is no checksum of the whole. Others are of the tokenizer with its chat
        template, of what the config says of the computation, of which adapters (PEFT) are active,
        merged and scaled (None without any), and of what the generation config says of answers.
        """
        return model_identity(self.model, self.tokenizer)

    def software(self) -> dict[str, str]:
        """Versions, and the device."""
        return software(self.device)

    def checked_method(
        self, method: MethodLike, method_options: Mapping[str, Any] | None = None
    ) -> Method:
        """A method object, known to take effect on this model.

        Raises:
            RagMiddleError: as `from_pretrained` does for its method.
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
        settings = checked_options(options, allowed=EncodeKwargs)
        chosen = self.method if method is None else resolve_method(method)
        return self._prepare.encode(prompt, chosen, settings)

    def begins_thinking(self, prompt: Prompt, **options: Unpack[EncodeKwargs]) -> bool:
        """Whether the model's thinking has begun where the prompt ends, as some templates write it.

        The generated text begins within it then.
        """
        if not isinstance(prompt, TokenizedPrompt):
            prompt = self.encode(prompt, method="none", **options)
        return engine.ends_thinking(prompt.input_ids, self._prepare.tokenizer)

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Ids of text inside a prompt, as `count_tokens` counts it."""
        return self._prepare.tokenizer.continuation(unmark(text))

    def token_text(self, token_id: int) -> str:
        """What a token adds to a text, special tokens by their name."""
        return self._prepare.tokenizer.token_text(token_id)

    def count_tokens(self, prompt: Prompt | Document, **options: Unpack[EncodeKwargs]) -> int:
        """Count tokens without sending anything.

        A string or a document counts as text inside a prompt: no special tokens, no chat
        template, no markers of documents. A prompt or chat messages count as `generate` would send
        them. For a string as `generate` would send it, take the length of `encode`.
        """
        settings = checked_options(options, allowed=EncodeKwargs)
        if isinstance(prompt, str | Document) and options:
            raise UnsupportedGenerationError(
                f"Text counts without {', '.join(options)}: take the length of encode() to "
                "count it as a prompt."
            )
        return self._prepare.count(prompt, settings)

    def precompute(self, prompts: Sequence[Prompt], **options: Unpack[EncodeKwargs]) -> int:
        """Read the documents of prompts into `document_cache` before anybody asks.

        What is kept is the prompt's prefix and each of its documents after it; the question is of
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
        if cache is None or not can_reuse_states(self.model):
            raise UnsupportedGenerationError(
                "Documents are kept in a document_cache: pass RagMiddleModel one."
                if cache is None
                else f"States of documents cannot be reused on this {self.model.config.model_type} "
                "model: it needs rotary positions whose frequencies do not depend on the prompt's "
                "length, and softmax attention without windows in every layer."
            )
        settings = checked_options(options, allowed=EncodeKwargs)
        with use_kernels(self._kernels):
            return sum(
                precompute(cache, self.model, self._prepare.encode(prompt, NoMethod(), settings))
                for prompt in prompts
            )
