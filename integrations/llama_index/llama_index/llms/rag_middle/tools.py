"""Tools and objects: LlamaIndex's forms to those of rag-middle, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, ToolCallBlock
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.program.function_program import get_function_tool
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import BaseTool
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.rag_middle.errors import RequestError

from rag_middle import Generation
from rag_middle.integration import message_fields, with_top_resolved

#: The function of a tool whose call is an object.
_MAKES_OBJECT = (get_function_tool.__module__, f"{get_function_tool.__name__}.<locals>.model_fn")


class ToolCalling(FunctionCallingLLM):
    """What `RagMiddleLLM` knows of tools, and of answers that are objects of a class.

    Objects are calls where the model calls tools, else JSON in text. Constrained decoding, where it
    is installed, makes sure that what the model writes is one.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)  # for type checkers, who see no fields of a subclass

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Arguments of `chat`: the messages, and the tools in OpenAI's form."""
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        messages = [*(chat_history or []), *([] if user_msg is None else [user_msg])]
        if not tools:
            return {"messages": messages, **kwargs}
        # LlamaIndex's programs require the call of an object in calls that are not streamed only.
        [first, *others] = [getattr(tool, "fn", None) for tool in tools]
        made_by = (getattr(first, "__module__", ""), getattr(first, "__qualname__", ""))
        tool_required |= made_by == _MAKES_OBJECT and not others
        return {
            "messages": messages,
            "tools": [_openai_tool(tool) for tool in tools],
            "tool_choice": tool_choice or ("any" if tool_required else "auto"),
            **kwargs,
        }

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        """The response with its first call only, where one at a time was asked for."""
        if not allow_parallel_tool_calls:
            blocks = response.message.blocks
            later = [block for block in blocks if isinstance(block, ToolCallBlock)][1:]
            response.message.blocks = [block for block in blocks if block not in later]
            response.message.additional_kwargs.update(call_fields(response.message))
        return response

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls in an answer.

        Raises:
            RequestError: there are none, and that is an error.
        """
        calls = [
            ToolSelection(
                tool_id=block.tool_call_id or "",
                tool_name=block.tool_name,
                tool_kwargs=dict(block.tool_kwargs),  # type: ignore[arg-type]
            )
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]
        if not calls and error_on_no_tool_call:
            raw = response.raw if isinstance(response.raw, Mapping) else {}
            cut = (
                " It was cut: raise max_new_tokens." if raw.get("finish_reason") == "length" else ""
            )
            raise RequestError(
                f"The model called no tool, it answered {response.message.content!r:.100}.{cut} "
                "tool_required=True makes it call one."
            )
        return calls

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


def _openai_tool(tool: BaseTool) -> dict[str, Any]:
    """The tool in OpenAI's form, with what LlamaIndex leaves out of the schema of its arguments."""
    converted: dict[str, Any] = tool.metadata.to_openai_tool(skip_length_check=True)
    if tool.metadata.fn_schema is None:
        return converted
    schema = with_top_resolved(tool.metadata.fn_schema.model_json_schema())  # of recursive classes
    of_schema = {key: schema[key] for key in schema if key not in ("title", "description")}
    function = converted["function"]
    parameters = {**of_schema, **function["parameters"]}
    return {**converted, "function": {**function, "parameters": parameters}}


def tool_calls(message: ChatMessage) -> list[tuple[str | None, str, Any]]:
    """Id, name of the tool and arguments of each call in the blocks of a message."""
    return [
        (block.tool_call_id, block.tool_name, block.tool_kwargs)
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]


def call_fields(message: ChatMessage) -> dict[str, Any]:
    """The calls in the blocks of a message, in OpenAI's form; no field without calls."""
    fields = message_fields("assistant", with_tools=True, calls=tool_calls(message))
    return {name: fields[name] for name in fields if name == "tool_calls"}


def call_blocks(generation: Generation | None) -> list[ToolCallBlock]:
    """The calls of an answer, as blocks of its message."""
    return [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=dict(call.arguments))
        for call in (generation.tool_calls if generation else ())
    ]
