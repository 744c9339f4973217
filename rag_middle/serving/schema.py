"""What a request may ask for.

Unknown fields are kept apart (`model_extra`): `service` refuses them, unless they cannot change the
answer or the operator lets them pass. An ignored `logit_bias` is a wrong answer that looks right.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    model_validator,
)

from rag_middle.conventions.documents import Block, Entry, ListOf
from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.definitions import check_response_format, check_tools, forced_tools

Whole = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
#: Of an option of a chat template: nothing that it could loop over.
TemplateValue = StrictBool | Whole | Number | Annotated[str, Field(max_length=100)]
#: Before a list of texts: one is a list of one.
OneOrMore = BeforeValidator(lambda texts: [texts] if isinstance(texts, str) else texts)

#: Fields that change no answer of this server.
_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention "
    "prediction".split()
)


class ChatMessage(BaseModel):
    """A message: a text, or blocks of text and documents; calls of tools, or what one returned."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | ListOf[Block] | None = None
    name: str | None = None
    # The second name is vLLM's, and that of clients of several providers.
    reasoning_content: str | None = Field(
        None, validation_alias=AliasChoices("reasoning_content", "reasoning")
    )
    tool_calls: ListOf[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def tool_fields(self) -> dict[str, Any]:
        """What a chat template reads beside role and content where there are tools."""
        names = {"assistant": {"tool_calls"}, "tool": {"tool_call_id", "name"}}
        return self.model_dump(include=names.get(self.role, set()), exclude_none=True)


class ChatRequest(BaseModel):
    """``POST /v1/chat/completions``. Fields that are None are as if they were not there."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1, max_length=2_000)]
    method: str | None = None
    documents: Annotated[ListOf[Entry], Field(max_length=10_000)] = []
    max_tokens: Count | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    typical_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    no_repeat_ngram_size: Annotated[Whole, Field(ge=0)] | None = None
    seed: Whole | None = None
    n: Count = 1
    stop: Annotated[list[StopString], Field(max_length=16), OneOrMore] = []
    stream: StrictBool = False
    stream_options: dict[str, Any] = {}
    response_format: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: StrictBool = True
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] = 0
    chat_template_kwargs: Annotated[dict[str, TemplateValue], Field(max_length=20)] = {}
    continue_final_message: StrictBool = False
    add_generation_prompt: StrictBool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, body: Any) -> Any:
        """Leave out what is None, what says nothing, and no bias, penalty or suffix at all."""
        if not isinstance(body, dict):
            return body
        names = {*cls.model_fields, "max_completion_tokens"}
        filled = {name: value for name, value in body.items() if value is not None}
        return {
            name: value
            for name, value in filled.items()
            if name in names or (value and name not in _IGNORED)
        }

    def constraints(self) -> dict[str, Any]:
        """What the answer has to look like, as checked options of `RagMiddleModel.batch`.

        Raises:
            UnsupportedGenerationError: it asks for what there is not.
        """
        check_response_format(self.response_format)
        check_tools(self.tools)
        forced_tools(self.tool_choice, self.tools)
        if self.top_logprobs and not self.logprobs:
            raise UnsupportedGenerationError(
                "top_logprobs come with log-probabilities only: pass logprobs=true."
            )
        form = self.response_format
        formed = {} if form in (None, {"type": "text"}) else {"response_format": form}
        if not self.tools or self.tool_choice == "none":
            return formed
        if self.tool_choice == "auto" and not self.parallel_tool_calls:
            raise UnsupportedGenerationError(
                "parallel_tool_calls=False holds only for calls that are forced, which come "
                "alone: pass a tool_choice, or leave it out."
            )
        return {**formed, "tools": self.tools, "tool_choice": self.tool_choice}
