"""What a request may ask for.

A field that this server does not know is refused, unless it cannot change the answer: clients send
many, and an ignored `logit_bias` would be a wrong answer that looks right.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rag_middle.conventions.documents import Block, ListOf, TopDocument
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.registry import suggest
from rag_middle.tools import check_response_format, check_tool_choice, check_tools
from rag_middle.wording import Argument, quoted

Whole = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]

#: Nothing that they say changes an answer of this server.
_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "prediction".split()
)
#: Values that ask for what happens anyway. `None` is one of every field's.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "suffix": ("",),
}
#: The same, and for fields that this server knows.
_EMPTY: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "response_format": ({"type": "text"},),
    "tools": ([],),
}


class StreamOptions(BaseModel):
    """How to stream; `include_obfuscation` asks for padding, which is left out."""

    model_config = ConfigDict(extra="ignore")

    include_usage: StrictBool = False


class CitationOptions(BaseModel):
    """Cohere's: ``OFF`` leaves citations out."""

    model_config = ConfigDict(extra="ignore")

    mode: str = "ENABLED"


class SamplingRequest(BaseModel):
    """What both endpoints take. Fields that are None are as if they were not there."""

    model_config = ConfigDict(extra="forbid")

    model: str
    method: str | None = None
    documents: ListOf[TopDocument] = []
    citation_options: CitationOptions = CitationOptions()
    max_tokens: Count | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    typical_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    no_repeat_ngram_size: Annotated[Whole, Field(ge=0)] | None = None
    seed: Whole | None = None
    n: Count = 1
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] = []
    stream: StrictBool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError("the body is a JSON object")
        asked = {
            name: value
            for name, value in body.items()
            if value is not None
            and name not in _IGNORED
            and not any(
                type(value) is not bool or value is neutral
                for neutral in _EMPTY.get(name, ())
                if value == neutral
            )
        }
        for name in asked:
            if name in _NEUTRAL:
                raise ValueError(
                    f"{name} is not supported: leave it out. It would change the answer, and this "
                    "server cannot do what it asks for"
                )
            if name not in cls.model_fields:
                raise ValueError(
                    f"there is no field {quoted(name)} here.{suggest(name, cls.model_fields)}"
                )
        return asked

    def constraints(self) -> dict[str, Any]:
        """What the answer has to look like, as checked options of `RagMiddleModel.batch`.

        Raises:
            UnsupportedGenerationError: it asks for what there is not.
        """
        check_response_format(self.response_format)
        return {} if self.response_format is None else {"response_format": self.response_format}

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens of an answer, None where the request does not say."""
        return self.max_tokens

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many tokens to report beside each generated one, None for no log-probabilities."""


class CalledFunction(BaseModel):
    """What is called, with its arguments as JSON in a string."""

    name: str
    arguments: str = "{}"


class EarlierCall(BaseModel):
    """A call that the model made earlier in the conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message: a text, or blocks of text and documents; calls of tools, or what one returned."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | ListOf[Block] | None = None
    name: str | None = None
    # The second name is vLLM's, and that of clients of several providers.
    reasoning_content: str | None = Field(
        None, validation_alias=AliasChoices("reasoning_content", "reasoning")
    )
    tool_calls: ListOf[EarlierCall] | None = None
    tool_call_id: str | None = None

    @property
    def tool_fields(self) -> dict[str, Any]:
        """What a chat template reads beside role and content where there are tools."""
        names = ("tool_calls",) if self.role == "assistant" else ("tool_call_id", "name")
        fields = self.model_dump(include=set(names), exclude_none=True)
        return fields if self.role in ("assistant", "tool") else {}


class ChatRequest(SamplingRequest):
    """``POST /v1/chat/completions``."""

    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)]
    tools: ListOf[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: StrictBool = True
    max_completion_tokens: Count | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] = 0

    @field_validator("top_logprobs")
    @classmethod
    def _beside_logprobs(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("logprobs", True):  # absent: refused itself
            raise ValueError("they come with log-probabilities only: pass logprobs=true too")
        return value

    def constraints(self) -> dict[str, Any]:
        """See `SamplingRequest`; with the tools, unless none of them may be called."""
        check_tools(self.tools)
        check_tool_choice(self.tool_choice, self.tools)
        if not self.tools or self.tool_choice == "none":
            return super().constraints()
        if self.tool_choice == "auto" and not self.parallel_tool_calls:
            raise UnsupportedGenerationError(
                Argument("parallel_tool_calls", False),
                " holds only for calls that are forced, which come alone: pass a tool_choice, or "
                "leave it out.",
            )
        return {**super().constraints(), "tools": self.tools, "tool_choice": self.tool_choice}

    @property
    def max_new_tokens(self) -> int | None:
        """See `SamplingRequest`; OpenAI's newer name comes first."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """See `SamplingRequest`."""
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(SamplingRequest):
    """``POST /v1/completions``: text that the model goes on with, without a chat template."""

    prompt: str | Annotated[ListOf[str], Field(min_length=1)]
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    @property
    def alternatives(self) -> int | None:
        """See `SamplingRequest`."""
        return self.logprobs
