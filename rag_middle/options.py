"""Options of a request, declared once: what they mean, their defaults and their limits.

`GenerationOptions` is the declaration and its own check. The flags of the command line and the
fields of the integrations are made from it (`OPTIONS`). Type checkers read no metadata, so the
typed dictionaries repeat names and types; a test compares them with the declaration. Nothing here
needs PyTorch, which the command line does not load to describe itself.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import check_keywords, check_whole, is_finite_number, is_whole
from rag_middle.registry import suggest
from rag_middle.tools.definitions import (
    check_response_format,
    check_tools,
    forced_tools,
)

#: That a request to an endpoint may take.
ENDPOINT_SECONDS = 300.0
#: Arguments of `RagMiddleModel.from_pretrained` that integrations take under the same names.
LOADING = tuple(
    "revision gguf_file tokenizer dtype device device_map quantization_config attn_implementation "
    "trust_remote_code context_window self_check model_options tokenizer_options".split()
)
#: Arguments of loading that hold the options of transformers' own functions.
LOADING_OPTIONS = ("model_options", "tokenizer_options")
_OF_LOADING = {"torch_dtype": "dtype", "use_auth_token": "token"}
#: What transformers and other interfaces call options.
_OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "stop_strings": "stop",
    "stop_sequence": "stop",
    "stop_sequences": "stop",
    "stop_words": "stop",
    "chat_template_kwargs": "template_options",
    **_OF_LOADING,
}
#: What to use instead of options that there are not.
_INSTEAD = {
    "max_length": "max_new_tokens",
    "do_sample": "temperature",
    "load_in_8bit": "quantization_config",
    "load_in_4bit": "quantization_config",
}
#: Options of loading that nothing may show: tokens of the hub, addresses that hold passwords.
SECRET_OPTIONS = ("token", "use_auth_token", "proxies")

Kernels = Literal["auto", "triton", "torch"]
#: What computed a method's attention: Triton kernels, or PyTorch's operators.
KernelsUsed = Literal["triton", "torch"]
MissingDocuments = Literal["warn", "error", "ignore"]
Overflow = Literal["error", "drop_documents"]
TemplateName = Literal["auto", "chat", "raw"]
#: Writes messages as one text, in place of a chat template.
TemplateFunction = Callable[[Sequence[Mapping[str, Any]]], str]
Template = TemplateName | TemplateFunction


class EncodeKwargs(TypedDict, total=False):
    """Options of `GenerationOptions` that say how text becomes tokens."""

    template: Template
    system: str | None
    template_options: Mapping[str, Any] | None
    allow_control_tokens: bool
    tools: Sequence[Mapping[str, Any]] | None


class PromptKwargs(EncodeKwargs, total=False):
    """Options of `GenerationOptions` about the prompt."""

    on_missing_documents: MissingDocuments
    missing_documents_hint: str
    on_overflow: Overflow


class AskKwargs(PromptKwargs, total=False):
    """Options of `GenerationOptions` that a question takes: ``top_k`` counts documents there."""

    max_new_tokens: int
    temperature: float
    top_p: float
    typical_p: float
    repetition_penalty: float
    no_repeat_ngram_size: int | None
    num_beams: int
    seed: int | Sequence[int] | None
    stop: str | Sequence[str]
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None
    logprobs: bool
    top_logprobs: int
    cancel: threading.Event | None
    tool_choice: str | Mapping[str, Any]
    response_format: Mapping[str, Any] | None


class GenerationKwargs(AskKwargs, total=False):
    """Fields of `GenerationOptions` as keyword arguments, for type checkers and editors."""

    top_k: int


@dataclass(frozen=True, slots=True)
class Option:
    """An option: what it means, and which values it takes.

    Attributes:
        help: sentences for a reader of the command line as much as of Python.
        minimum: smallest value.
        above: a value it must exceed, where there is no smallest one.
        maximum: largest value.
        hint: ends the message about a value that is refused.
        name: of the field.
        type: of its values.
        default: its default.
    """

    help: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    hint: str = ""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The names it takes, where it takes some."""
        for kind in (self.type, *get_args(self.type)):
            if get_origin(kind) is Literal:
                return get_args(kind)
        return ()

    def check(self, value: Any) -> None:
        """Raise `UnsupportedGenerationError` unless it is of the type, range and names."""
        expected = None
        if self.choices:
            if value not in self.choices and not (callable(value) and self.type == Template):
                expected = f"one of {', '.join(map(repr, self.choices))}"
        elif self.type in (int, float, int | None):
            is_number = is_finite_number if self.type is float else is_whole
            is_left_out = value is None and self.type == int | None
            if not (is_left_out or (is_number(value) and self._is_in_range(value))):
                expected = f"{'a' if self.type is float else 'a whole'} number {self._range_text}"
        elif Sequence[int] in get_args(self.type):
            numbers = value if isinstance(value, Sequence) else [value]
            least = -inf if self.minimum is None else self.minimum
            if value is not None and not all(is_whole(number, least) for number in numbers):
                expected = f"a whole number {self._range_text}".rstrip() + " or a list of them"
        elif Sequence[str] in get_args(self.type):
            strings = [value] if isinstance(value, str) else value
            is_list = isinstance(strings, Sequence)
            if not is_list or not all(isinstance(string, str) and string for string in strings):
                expected = "a string or a list of strings of at least one character"
        elif self.type in (bool, str, str | None):
            if not isinstance(value, self.type):
                expected = "True or False" if self.type is bool else "a string"
        elif self.type == threading.Event | None:
            # Events of other libraries do as well.
            if value is not None and not callable(getattr(value, "is_set", None)):
                expected = "a threading.Event"
        elif self.type == Mapping[str, Any] | None:
            check_keywords(self.name, value)
        if expected is not None:
            raise UnsupportedGenerationError(
                f"{self.name} must be {expected}, got {value!r:.100}. {self.hint}".rstrip()
            )

    def _is_in_range(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )

    @property
    def _range_text(self) -> str:
        limits = {"at least": self.minimum, "above": self.above, "at most": self.maximum}
        return " and ".join(f"{word} {v:g}" for word, v in limits.items() if v is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to generate. `OPTIONS` says what each option means.

    These defaults hold whatever the model's own generation config says: its sampling settings are
    not used. End tokens and stop strings, suppressed tokens and the length penalty of beams are
    taken from it (`rag_middle.generation.own_config`).

    Raises:
        UnsupportedGenerationError: a value that makes no sense, or a combination that cannot be
            served.
    """

    template: Annotated[
        Template,
        Option(
            "Use the tokenizer's chat template. auto: if it has one. In Python also a function "
            "that writes messages as one text, see `tokens.encode`."
        ),
    ] = "auto"
    system: Annotated[str | None, Option("System message.")] = None
    template_options: Annotated[
        Mapping[str, Any] | None, Option("More arguments for the chat template.")
    ] = None
    allow_control_tokens: Annotated[
        bool, Option("Raw prompts only: recognise control tokens outside documents.")
    ] = False
    on_overflow: Annotated[
        Overflow,
        Option(
            "If the prompt exceeds the context window: refuse it, or drop the least relevant "
            "documents. "
            "Relevance is the retriever's score where all documents have one, else the first "
            "counts most."
        ),
    ] = "error"
    on_missing_documents: Annotated[
        MissingDocuments,
        Option(
            "A prompt without documents, where the method needs some: warn, refuse it, or say "
            "nothing. Nothing is said before the tools of a request have returned some."
        ),
    ] = "warn"
    missing_documents_hint: Annotated[
        str, Option("What the message about missing documents advises: how to mark some.")
    ] = "Pass a ContextPrompt, or wrap each document in mark()."
    max_new_tokens: Annotated[int, Option("Maximum new tokens.", minimum=1)] = 256
    temperature: Annotated[float, Option("0 = greedy; above 0 = sampling.", minimum=0)] = 0.0
    top_p: Annotated[
        float,
        Option(
            "Sample from the most probable tokens that make up this probability (nucleus).",
            above=0,
            maximum=1,
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Option(
            "Sample from this many most probable tokens; 0: all.",
            minimum=0,
            hint="0 means no limit.",
        ),
    ] = 0
    typical_p: Annotated[
        float,
        Option(
            "Sample from the tokens with the most typical log-probability, up to this total "
            "probability (typical sampling).",
            above=0,
            maximum=1,
        ),
    ] = 1.0
    repetition_penalty: Annotated[
        float,
        Option(
            "Above 1: repeat less of what is there.",
            minimum=1e-6,  # beyond these, logits leave the range of float32
            maximum=1e6,
        ),
    ] = 1.0
    no_repeat_ngram_size: Annotated[
        int | None,
        Option(
            "No sequence of this many tokens comes twice, the prompt included: longer quotations "
            "are impossible then. 0: any may. Default: what the model's generation config says.",
            minimum=0,
        ),
    ] = None
    num_beams: Annotated[
        int,
        Option(
            "Beams of a beam search, which does not sample and cannot be streamed.",
            minimum=1,
            maximum=1024,
            hint="Each beam is a row of the batch.",
        ),
    ] = 1
    seed: Annotated[
        int | Sequence[int] | None,
        Option(
            "Random seed of sampling: the same text again, alone or in a batch. Without it, one is "
            "drawn and reported. In Python a batch also takes one per prompt."
        ),
    ] = None
    stop: Annotated[
        str | Sequence[str],
        Option(
            "End before this string, or the first of several.",
            hint="Leave it out to generate to the end.",
        ),
    ] = ()
    eos_token_id: Annotated[
        int | Sequence[int] | None,
        Option(
            "Tokens that end the text, one or several, instead of the model's own; an empty list "
            "for none at all.",
            minimum=0,
            hint="For words that end an answer there is stop.",
        ),
    ] = None
    pad_token_id: Annotated[
        int | None,
        Option(
            "Token that fills shorter prompts of a batch. It is masked: no answer depends on it.",
            minimum=0,
        ),
    ] = None
    logprobs: Annotated[
        bool,
        Option(
            "Report the log-probability of each generated token, before temperature, top_p, top_k "
            "and typical_p."
        ),
    ] = False
    top_logprobs: Annotated[
        int,
        Option("With logprobs: how many of the most probable tokens to add to each.", minimum=0),
    ] = 0
    cancel: Annotated[
        threading.Event | None,
        Option("When set, by any thread, generation ends after the token under way."),
    ] = None
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Option(
            "Tools that the model may call, as the OpenAI interface describes them; the chat "
            "template shows them."
        ),
    ] = None
    tool_choice: Annotated[
        str | Mapping[str, Any],
        Option(
            "auto: the model decides; none: it calls no tool; any: it has to call one; or the "
            "name of the one it has to call."
        ),
    ] = "auto"
    response_format: Annotated[
        Mapping[str, Any] | None,
        Option(
            "What the answer has to be: of type json_schema, json_object or regex, as the OpenAI "
            "interface says it."
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, declaration in OPTIONS.items():
            declaration.check(getattr(self, name))
        if self.num_beams > 1 and self.samples:
            raise UnsupportedGenerationError(
                f"num_beams={self.num_beams} (--beams) searches and "
                f"temperature={self.temperature} draws: use one of them."
            )
        if self.top_logprobs and not self.logprobs:
            raise UnsupportedGenerationError(
                f"top_logprobs={self.top_logprobs} needs logprobs=True."
            )
        if self.num_beams > 1 and self.logprobs:
            raise UnsupportedGenerationError(
                "logprobs are not kept for hypotheses of a beam search: pass num_beams=1 "
                "(--beams 1), or ask score() about the text."
            )
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stops)
        check_tools(self.tools)
        forced_tools(self.tool_choice, self.tools or ())
        check_response_format(self.response_format)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        return self.temperature > 0

    @property
    def shapes_text(self) -> bool:
        """Whether anything is said about how text becomes tokens."""
        return self.template != "auto" or any(
            (self.system, self.template_options, self.allow_control_tokens)
        )

    @property
    def alternatives(self) -> int | None:
        """How many tokens to report beside each generated one; None for no log-probabilities."""
        return self.top_logprobs if self.logprobs else None

    def seeds(self, prompts: int) -> tuple[int | None, ...]:
        """A seed for each of `prompts`, ``None`` where nothing is drawn.

        Raises:
            UnsupportedGenerationError: not one seed per prompt.
        """
        seeds: tuple[int, ...]
        if self.seed is None:
            seeds = tuple(secrets.randbits(32) for _ in range(prompts))
        else:
            seeds = tuple(self.seed) if isinstance(self.seed, Sequence) else (self.seed,) * prompts
        if len(seeds) != prompts:
            raise UnsupportedGenerationError(
                f"seed must be a whole number, or one for each of {prompts} prompts, got "
                f"{self.seed!r:.100}."
            )
        return seeds if self.samples else (None,) * prompts


def _options() -> dict[str, Option]:
    hints = get_type_hints(GenerationOptions, include_extras=True)
    return {
        field.name: replace(option, name=field.name, type=kind, default=field.default)
        for field in fields(GenerationOptions)
        for kind, option in [get_args(hints[field.name])]
    }


#: Every option by its name.
OPTIONS: Mapping[str, Option] = _options()

#: Of the model, not of a request.
KERNELS = Option(
    "What computes a method's attention. auto: its Triton kernels, if it has some, on a GPU in "
    "half precision, else PyTorch's operators; triton: refuse where they cannot run; torch: "
    "never Triton.",
    name="kernels",
    type=Kernels,
    default="auto",
)

#: For integrations, whose interfaces have room for several answers to one prompt.
ANSWERS = Option(
    "Answers to each prompt, drawn with consecutive seeds; several need a temperature above 0.",
    minimum=1,
    maximum=1024,
    name="n",
    type=int,
    default=1,
)


def checked_options(arguments: Mapping[str, Any], *, allowed: type[Any]) -> GenerationOptions:
    """Options from keyword arguments.

    Args:
        arguments: by name.
        allowed: the typed dictionary that lists the names this request takes.

    Raises:
        UnsupportedGenerationError: a name that is not an option here, with the nearest one; or a
            value that is refused.
    """
    names = [name for name in OPTIONS if name in allowed.__annotations__]
    for name in arguments:
        if name not in names:
            raise unknown_option(name, names)
    return GenerationOptions(**arguments)


def unknown_option(name: str, names: Collection[str]) -> UnsupportedGenerationError:
    """The error about an option that is none of those that exist."""
    meant = {**_OTHER_NAMES, **_INSTEAD}.get(name, name)
    return UnsupportedGenerationError(
        f"There is no option {name!r} here.{suggest(meant, names)} Options: {', '.join(names)}."
    )


def renamed(given: Mapping[str, Any], others: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Options under the names of this package; unknown ones keep theirs, for the caller to refuse.

    ``do_sample=False`` is temperature 0; ``do_sample=True`` is temperature 1 unless another one
    above 0 is given with it. A temperature alone draws, too.

    Args:
        given: options of generation or loading, in names of this package or of transformers.
        others: more names, and what they stand for.

    Raises:
        UnsupportedGenerationError: one thing twice, or `do_sample` is neither True nor False.
    """
    names = {**_OTHER_NAMES, **(others or {})}
    options: dict[str, Any] = {}
    stated: dict[str, str] = {}
    for name, value in given.items():
        known = names.get(name, name)
        if known in options:
            raise UnsupportedGenerationError(
                f"{name} and {stated[known]} are the same and were both given: pass one of them."
            )
        options[known], stated[known] = value, name
    sampled = options.pop("do_sample", None)
    if not isinstance(sampled, bool | None):
        raise UnsupportedGenerationError(f"do_sample must be True or False, got {sampled!r}.")
    if sampled is not None:
        options["temperature"] = (options.get("temperature") or 1.0) if sampled else 0.0
    return options


def split_loading(keywords: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """``model_kwargs`` for loading, and options of answers among them, as `renamed` has them.

    Raises:
        UnsupportedGenerationError: no mapping, or as of `renamed`.
    """
    check_keywords("model_kwargs", keywords)
    loading = dict(keywords or {})
    of_answers = {*OPTIONS, *_OTHER_NAMES, "do_sample", "max_length"} - {*_OF_LOADING}
    answers = {name: loading.pop(name) for name in [*loading] if name in of_answers}
    return renamed(loading), renamed(answers)


def with_token(loading: Mapping[str, Any], token: object) -> dict[str, Any]:
    """Arguments of loading, with a token of the hub for model and tokenizer unless it is None.

    One among the options of either comes first.
    """
    if token is None:
        return {**loading}
    options = {name: {"token": token, **(loading.get(name) or {})} for name in LOADING_OPTIONS}
    return {**loading, **options}


def without_secrets(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What may be shown, kept and saved of the options that a model or tokenizer loads with."""
    return {name: value for name, value in (options or {}).items() if name not in SECRET_OPTIONS}


def check_context_window(tokens: object) -> None:
    """Raise `UnsupportedGenerationError` unless `tokens` is a number of tokens, or None."""
    if tokens is not None:
        check_whole("context_window", tokens, least=1, hint="None means what the model says.")
