"""What a request gives back: values only, no tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rag_middle.options import KernelsUsed
from rag_middle.tools.definitions import InvalidToolCall, ToolCall

#: ``stop``: an end token or a stop string; ``length``: `max_new_tokens` reached; ``cancelled``: by
#: the caller; ``content_filter``: a server (`rag_middle.endpoint`) withheld the text or its end.
FinishReason = Literal["stop", "length", "cancelled", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts.

    Attributes:
        prompt_tokens: of the prompt as sent: special tokens included, padding not.
        completion_tokens: generated, an end token and tokens of a stop string included.
    """

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds. The prompts of a batch share all but `tokenize`, and `decode` where
    somebody follows them one by one.

    Attributes:
        tokenize: from prompt to token ids.
        wait: for other requests on the same model.
        prefill: from the start of the first forward pass to the first generated token.
        decode: from the first generated token to the last.
    """

    tokenize: float
    wait: float
    prefill: float
    decode: float

    @property
    def time_to_first_token(self) -> float:
        """Until the first token is there."""
        return self.tokenize + self.wait + self.prefill

    @property
    def total(self) -> float:
        """Everything."""
        return self.time_to_first_token + self.decode

    def to_dict(self) -> dict[str, float]:
        """The fields and their sums."""
        sums = {name: getattr(self, name) for name in ("time_to_first_token", "total")}
        return {**asdict(self), **sums}


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedDocument:
    """A document left out so that the prompt fits.

    Attributes:
        index: 0-based position among the prompt's documents.
        id: `Document.id`.
    """

    index: int
    id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbability:
    """How probable a generated token was.

    Attributes:
        token_id: of the token.
        log_probability: natural logarithm, given all tokens before it; -9999 where it would be
            infinite, which JSON cannot say.
        alternatives: the most probable tokens there and theirs, the best one first.
    """

    token_id: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generated text and how it came about.

    Attributes:
        text: what the model wrote: without the prompt, special tokens, and anything from a stop
            string on.
        token_ids: everything generated, an end token included.
        finish_reason: why it ended.
        stop: the stop string that ended it, if one did.
        usage: token counts.
        timings: seconds.
        method: of the request, by the name that chooses it: ``pine``, a preset (``METHOD:PRESET``),
            ``profile:PATH``, a composition (``ms_poe+siw``).
        applied: whether the method could act on this prompt: false for neutral parameters, and
            where a method that needs documents found none.
        kernels: what computed the method's attention: its Triton kernels, or PyTorch's operators.
        tool_calls: what the model asks to be called, where it was given tools; no part of `text`.
        invalid_tool_calls: text that begins like a call and is none; no part of `text` either.
        documents: documents in the prompt as sent.
        document_ids: their ids (`Document.id`), in the order in which they were sent.
        dropped_documents: documents left out because the prompt did not fit, in prompt order.
        seed: what repeats this text; ``None`` where nothing was drawn.
        log_probabilities: of `token_ids`, one by one, where ``logprobs`` asked for them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    usage: Usage
    timings: Timings
    method: str
    applied: bool
    documents: int
    document_ids: tuple[str | None, ...]
    dropped_documents: tuple[DroppedDocument, ...]
    seed: int | None
    kernels: KernelsUsed = "torch"
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    log_probabilities: tuple[TokenLogProbability, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first token; 0.0 where nothing came after it."""
        decoded = self.usage.completion_tokens - 1
        return decoded / self.timings.decode if decoded > 0 and self.timings.decode > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, the derived numbers too."""
        return {
            **asdict(self),
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "timings": self.timings.to_dict(),
            "tokens_per_second": self.tokens_per_second,
        }

    def report(self) -> dict[str, Any]:
        """`to_dict` without what chat interfaces have fields of their own for, as JSON reads it.

        Left out: text, token ids, calls of tools, log-probabilities, token counts, finish reason.
        """
        report = self.to_dict()
        for name in _OWN_FIELDS:
            del report[name]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in report.items()
        }


_OWN_FIELDS = ("text", "token_ids", "tool_calls", "log_probabilities", "usage", "finish_reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How likely a model finds a continuation of a prompt.

    Attributes:
        token_ids: of the continuation.
        log_probabilities: natural logarithm, one per token, each given all tokens before it.
        is_greedy: greedy decoding of the prompt would begin with exactly these tokens.
        prompt_tokens: of the prompt, special tokens included.
        method: as in `Generation`, like `applied` and `kernels`.
    """

    token_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    is_greedy: bool
    prompt_tokens: int
    method: str
    applied: bool
    kernels: KernelsUsed = "torch"

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return sum(self.log_probabilities)
