"""Objects of a class as answers: calls of a tool where the model calls tools, else JSON in text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from llama_index.core.base.llms.types import (
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
)
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.program import FunctionCallingProgram, LLMTextCompletionProgram
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.program.utils import FlexibleModel, create_flexible_model, get_program_for_llm
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import BaseTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.rag_middle.tools import ToolCalling
from pydantic_core import from_json


class StructuredOutput(ToolCalling):
    """What `RagMiddleLLM` knows of answers that are objects of a class."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)  # for type checkers, who see no fields of a subclass

    def structured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """An object of a class, which constrained decoding makes sure of where it is installed."""
        options = self._of_form(output_cls, llm_kwargs)
        made: BaseModel = super().structured_predict(output_cls, prompt, options, **prompt_args)
        return made

    async def astructured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """As `structured_predict`, without blocking the event loop."""
        options = self._of_form(output_cls, llm_kwargs)
        made: BaseModel = await super().astructured_predict(
            output_cls, prompt, options, **prompt_args
        )
        return made

    def stream_chat_with_tools(
        self, tools: Sequence[BaseTool], *args: Any, **kwargs: Any
    ) -> ChatResponseGen:
        """As `chat_with_tools`, piece by piece; calls come with the last piece."""
        return super().stream_chat_with_tools(tools, *args, **_required(tools, kwargs))

    async def astream_chat_with_tools(
        self, tools: Sequence[BaseTool], *args: Any, **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """As `stream_chat_with_tools`, without blocking the event loop."""
        return await super().astream_chat_with_tools(tools, *args, **_required(tools, kwargs))

    # `stream_structured_predict` and its asynchronous form are LlamaIndex's, around these. Its
    # programs do not force a call in streams, and repair JSON by counting quotation marks.

    def _structured_stream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        """The object as it grows where it is written as text, and the whole one at the end."""
        growing = self._growing_object(output_cls, prompt, llm_kwargs, prompt_args)
        if growing is None:
            yield from super()._structured_stream_call(
                output_cls, prompt, llm_kwargs, **prompt_args
            )
            return
        with closing(getattr(self, f"stream_{growing.call}")(**growing.arguments)) as responses:
            for response in responses:
                if (part := growing.part(response)) is not None:
                    yield part
        yield growing.whole()

    async def _structured_astream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        """As `_structured_stream_call`, without blocking the event loop."""
        growing = self._growing_object(output_cls, prompt, llm_kwargs, prompt_args)
        if growing is None:
            others: AsyncGenerator[Any, None] = await super()._structured_astream_call(
                output_cls, prompt, llm_kwargs, **prompt_args
            )
            return others
        stream = await getattr(self, f"astream_{growing.call}")(**growing.arguments)

        async def objects() -> AsyncGenerator[Any, None]:
            async with aclosing(stream) as responses:
                async for response in responses:
                    if (part := growing.part(response)) is not None:
                        yield part
            yield growing.whole()

        return objects()

    def _growing_object(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: Mapping[str, Any] | None,
        prompt_args: Mapping[str, Any],
    ) -> _GrowingObject | None:
        """What to ask for an object; None where a program of another package asks."""
        mode = self.pydantic_program_mode
        program = get_program_for_llm(output_cls, prompt, self, pydantic_program_mode=mode)
        if isinstance(program, FunctionCallingProgram):
            options = {k: v for k, v in (llm_kwargs or {}).items() if k not in _OF_PROGRAMS}
            history = self._extend_messages(program.prompt.format_messages(llm=self, **prompt_args))
            tools = {"tools": [get_function_tool(output_cls)], "tool_required": True}
            arguments = {"chat_history": history, **tools, **options}
            return _GrowingObject(self, output_cls, "chat_with_tools", arguments)
        if isinstance(program, LLMTextCompletionProgram):
            options = self._of_form(output_cls, llm_kwargs)
            if self.metadata.is_chat_model:
                messages = program.prompt.format_messages(llm=self, **prompt_args)
                arguments = {"messages": self._extend_messages(messages), **options}
                return _GrowingObject(self, output_cls, "chat", arguments)
            text = program.prompt.format(llm=self, **prompt_args)
            return _GrowingObject(self, output_cls, "complete", {"prompt": text, **options})
        return None

    def _of_form(
        self, output_cls: type[BaseModel], options: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Options of a call whose answer is JSON of a class, unless it is the call of a tool."""
        mode = self.pydantic_program_mode
        in_text = mode == PydanticProgramMode.LLM or (
            mode == PydanticProgramMode.DEFAULT and not self.metadata.is_function_calling_model
        )
        if not in_text or find_spec("llguidance") is None:
            return dict(options or {})
        named = {"name": output_cls.__name__, "schema": output_cls.model_json_schema()}
        form = {"type": "json_schema", "json_schema": named}
        return {"response_format": form, **(options or {})}


class _GrowingObject:
    """An object of a class, read from a stream of responses.

    Args:
        llm: that responds.
        output_cls: the class.
        call: the call to stream, without ``stream_``.
        arguments: of that call.
    """

    def __init__(
        self,
        llm: StructuredOutput,
        output_cls: type[BaseModel],
        call: str,
        arguments: dict[str, Any],
    ) -> None:
        self.call = call
        self.arguments = arguments
        self._llm = llm
        self._output_cls = output_cls
        self._last: ChatResponse | CompletionResponse | None = None
        self._fields: Any = {}

    def part(self, response: ChatResponse | CompletionResponse) -> FlexibleModel | None:
        """What the response so far has of the object, if that is more than before."""
        self._last = response
        if self.call == "chat_with_tools":
            return None  # a call is read when it is whole
        text = _text(response)
        try:
            fields = from_json(text[text.find("{") :], allow_partial="trailing-strings")
            part = self._flexible.model_validate(fields)
        except ValueError:
            return None
        grown, self._fields = fields != self._fields, fields
        return part if grown else None

    def whole(self) -> BaseModel:
        """The object of the last response.

        Raises:
            RequestError: it was to be a call, and there is none.
            ValueError: the text is no such object, or the class refuses it.
        """
        assert self._last is not None
        if self.call == "chat_with_tools":
            assert isinstance(self._last, ChatResponse)
            (first, *_) = self._llm.get_tool_calls_from_response(self._last)
            return self._output_cls.model_validate(first.tool_kwargs)
        made: BaseModel = PydanticOutputParser(self._output_cls).parse(_text(self._last))
        return made

    @cached_property
    def _flexible(self) -> type[FlexibleModel]:
        return create_flexible_model(self._output_cls)


#: Arguments of calls that LlamaIndex's programs set themselves.
_OF_PROGRAMS = ("tool_required", "tool_choice", "allow_parallel_tool_calls")
#: The function of a tool whose call is an object.
_MAKES_OBJECT = (get_function_tool.__module__, f"{get_function_tool.__name__}.<locals>.model_fn")


def _required(tools: Sequence[BaseTool], arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a streamed call, which is required if it is to be an object.

    LlamaIndex's programs say so in calls that are not streamed only.
    """
    functions = [getattr(tool, "fn", None) for tool in tools]
    made_by = [(getattr(f, "__module__", ""), getattr(f, "__qualname__", "")) for f in functions]
    if made_by != [_MAKES_OBJECT] or arguments.get("tool_choice") is not None:
        return arguments
    return {**arguments, "tool_required": True}


def _text(response: ChatResponse | CompletionResponse) -> str:
    if isinstance(response, ChatResponse):
        return response.message.content or ""
    return response.text
