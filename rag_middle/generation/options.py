"""Options of a request: checked once, refused by name, never ignored."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import check_whole, is_finite_number, is_whole
from rag_middle.registry import suggest
from rag_middle.tokens.encode import Template, TemplateName
from rag_middle.wording import Argument

__all__ = [
    "EncodeKwargs",
    "GenerationKwargs",
    "GenerationOptions",
    "PromptKwargs",
    "check_context_window",
    "checked_options",
]

_MOST_BEAMS = 1024

MissingDocuments = Literal["warn", "error", "ignore"]
Overflow = Literal["error", "drop_documents"]


class EncodeKwargs(TypedDict, total=False):
    """Options of `GenerationOptions` that say how text becomes tokens."""

    template: Template
    system: str | None
    template_options: Mapping[str, Any] | None
    allow_control_tokens: bool


class PromptKwargs(EncodeKwargs, total=False):
    """Options of `GenerationOptions` about the prompt."""

    on_missing_documents: MissingDocuments
    on_overflow: Overflow


class GenerationKwargs(PromptKwargs, total=False):
    """Fields of `GenerationOptions` as keyword arguments, for type checkers and editors."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    num_beams: int
    seed: int | Sequence[int] | None
    stop: str | Sequence[str]
    cancel: threading.Event | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to generate.

    These defaults hold whatever the model's own generation config says: its sampling settings are
    not used. What is not offered here is taken from it (end tokens and stop strings, suppressed
    tokens, length penalty of beams); what cannot be served is refused
    (`rag_middle.generation.own_config`).

    Attributes:
        max_new_tokens: most tokens to generate.
        temperature: 0 takes the likeliest token each time; above 0 tokens are drawn.
        top_p: draw only from the likeliest tokens that together have this probability. Nothing
            is drawn at temperature 0.
        top_k: draw only from this many likeliest tokens; 0 for all.
        repetition_penalty: above 1 makes tokens of the prompt and the answer less likely.
        num_beams: hypotheses of a beam search, which draws nothing and cannot be streamed.
        seed: the same seed gives the same text, alone or in a batch, whatever else draws random
            numbers. A batch takes one for all prompts or one per prompt. ``None`` draws a seed and
            reports it.
        stop: strings that end the text and are cut off it.
        cancel: when set, by any thread, generation ends after the token under way.
        template: ``"chat"``, ``"raw"``, or ``"auto"`` for chat where the tokenizer has a template;
            or a function that writes messages as one text, see `tokens.encode`.
        system: a system message.
        template_options: more arguments for the chat template.
        allow_control_tokens: raw prompts only: recognise control tokens outside documents.
        on_missing_documents: what to do where a method needs documents and the prompt has none.
        on_overflow: what to do where prompt and `max_new_tokens` exceed the context window:
            refuse, or leave out the least relevant documents. Relevance is
            ``Document.metadata["score"]``, higher is better, where all documents have it;
            otherwise earlier documents count as more relevant.

    Raises:
        UnsupportedGenerationError: a value that makes no sense, or a combination that cannot be
            served.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    num_beams: int = 1
    seed: int | Sequence[int] | None = None
    stop: str | Sequence[str] = ()
    cancel: threading.Event | None = None
    template: Template = "auto"
    system: str | None = None
    template_options: Mapping[str, Any] | None = None
    allow_control_tokens: bool = False
    on_missing_documents: MissingDocuments = "warn"
    on_overflow: Overflow = "error"

    def __post_init__(self) -> None:
        check_whole("max_new_tokens", self.max_new_tokens, least=1)
        check_whole("num_beams", self.num_beams, least=1)
        if self.num_beams > _MOST_BEAMS:
            raise UnsupportedGenerationError(
                Argument("num_beams"),
                f" must be at most {_MOST_BEAMS}, got {self.num_beams!r}: each is a row of the "
                "batch.",
            )
        check_whole("top_k", self.top_k, least=0, hint="0 means no limit.")
        _number("temperature", self.temperature, lambda v: v >= 0, "0 or more")
        _number("top_p", self.top_p, lambda v: 0 < v <= 1, "above 0 and at most 1")
        _number(
            "repetition_penalty",
            self.repetition_penalty,
            lambda v: 1e-6 <= v <= 1e6,  # beyond, logits leave the range of float32
            "from 1e-6 to 1e6",
        )
        if not callable(self.template):
            _one_of("template", self.template, get_args(TemplateName))
        _one_of("on_missing_documents", self.on_missing_documents, get_args(MissingDocuments))
        _one_of("on_overflow", self.on_overflow, get_args(Overflow))
        if self.num_beams > 1 and self.samples:
            raise UnsupportedGenerationError(
                Argument("num_beams", self.num_beams),
                " searches and ",
                Argument("temperature", self.temperature),
                " draws: use one of them.",
            )
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        self.seeds(len(self.seed) if isinstance(self.seed, Sequence) else 1)

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
    def stop_strings(self) -> tuple[str, ...]:
        """All stop strings."""
        return tuple(self.stop)

    def seeds(self, prompts: int) -> tuple[int | None, ...]:
        """A seed for each of `prompts`, ``None`` where nothing is drawn.

        Raises:
            UnsupportedGenerationError: seeds that are no whole numbers, or not one per prompt.
        """
        seeds: tuple[int, ...]
        if self.seed is None:
            seeds = tuple(secrets.randbits(32) for _ in range(prompts))
        else:
            seeds = tuple(self.seed) if isinstance(self.seed, Sequence) else (self.seed,) * prompts
        if len(seeds) != prompts or not all(is_whole(seed) for seed in seeds):
            raise UnsupportedGenerationError(
                Argument("seed"),
                f" must be a whole number, or one for each of {prompts} prompts, got "
                f"{self.seed!r}.",
            )
        return seeds if self.samples else (None,) * prompts


#: What people know from other libraries, and where it is here.
_ELSEWHERE = {
    "do_sample": "A temperature above 0 draws tokens; 0 does not.",
    "max_length": "max_new_tokens counts the generated tokens alone.",
    "max_tokens": "Did you mean 'max_new_tokens'?",
    "n": "Repeat the prompt in batch().",
    "num_return_sequences": "Repeat the prompt in batch().",
    "return_full_text": "The prompt is never part of the text.",
    "stop_sequence": "Did you mean 'stop'?",
    "stop_sequences": "Did you mean 'stop'?",
    "stop_strings": "Did you mean 'stop'?",
    "stream": "Call stream() instead.",
    "streamer": "Call stream() instead.",
}


def checked_options(arguments: Mapping[str, Any], *, allowed: type[Any]) -> GenerationOptions:
    """Options from keyword arguments.

    Args:
        arguments: by name.
        allowed: the typed dictionary that lists the names this request takes.

    Raises:
        UnsupportedGenerationError: a name that is not an option here, with the nearest one; or a
            value that is refused.
    """
    names = [f.name for f in fields(GenerationOptions) if f.name in allowed.__annotations__]
    for name in arguments:
        if name not in names:
            hint = _ELSEWHERE.get(name) if allowed is GenerationKwargs else None
            hint = f" {hint}" if hint else suggest(name, names)
            raise UnsupportedGenerationError(
                f"There is no option {name!r} here.{hint} Options: {', '.join(names)}."
            )
    return GenerationOptions(**arguments)


def check_context_window(tokens: object) -> None:
    """Raise `UnsupportedGenerationError` unless `tokens` is a number of tokens, or None."""
    if tokens is not None:
        check_whole("context_window", tokens, least=1, hint="None means what the model says.")


def _stop_strings(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) or not isinstance(stop, Sequence) else tuple(stop)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise UnsupportedGenerationError(
                Argument("stop"),
                f" must be a string or a list of strings of at least one character, got {stop!r}. "
                "Leave ",
                Argument("stop"),
                " out to generate to the end.",
            )
    return strings


def _number(name: str, value: Any, in_range: Callable[[float], bool], range_text: str) -> None:
    if not (is_finite_number(value) and in_range(value)):
        raise UnsupportedGenerationError(
            Argument(name), f" must be a number {range_text}, got {value!r}."
        )


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnsupportedGenerationError(
            Argument(name), f" must be one of {', '.join(map(repr, choices))}, got {value!r}."
        )
