"""Objects of a class as answers: calls of a tool where the model calls tools, else JSON in text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from llama_index.core.base.llms.types import ChatResponseAsyncGen, ChatResponseGen
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import BaseTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.rag_middle.tools import ToolCalling


class StructuredOutput(ToolCalling):
    """What `RagMiddleLLM` knows of answers that are objects of a class.

    LlamaIndex's programs ask for them; constrained decoding, where it is installed, makes sure that
    what the model writes is one.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)  # for type checkers, who see no fields of a subclass

    def structured_predict(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> BaseModel:
        """An object of a class."""
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

    def _structured_stream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        options = self._of_form(output_cls, llm_kwargs)
        objects: Generator[Any, None, None] = super()._structured_stream_call(
            output_cls, prompt, options, **prompt_args
        )
        return objects

    async def _structured_astream_call(
        self,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        options = self._of_form(output_cls, llm_kwargs)
        objects: AsyncGenerator[Any, None] = await super()._structured_astream_call(
            output_cls, prompt, options, **prompt_args
        )
        return objects

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
