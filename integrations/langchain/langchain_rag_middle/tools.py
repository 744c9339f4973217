"""Tools and structured output: LangChain's forms to those of rag-middle, and back."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass

from langchain_rag_middle.schemas import json_schema_of, openai_tool_of
from rag_middle import UnsupportedGenerationError

if TYPE_CHECKING:
    from rag_middle import Generation


class _Whole:
    """Of a parser: refuses what is cut, which LangChain's parsers would complete by guessing."""

    def parse_result(self, result: list[Any], *, partial: bool = False) -> Any:
        message = result[0].message
        if message.response_metadata.get("finish_reason") == "length":
            raise OutputParserException(
                "The answer was cut before its form was complete: raise max_tokens.",
                llm_output=str(message.content),
            )
        inherited: Any = super()
        return inherited.parse_result(result, partial=partial)


class _WholeJson(_Whole, JsonOutputParser):
    pass


class _WholePydantic(_Whole, PydanticOutputParser):  # type: ignore[type-arg]
    pass


class _WholeCall(_Whole, JsonOutputKeyToolsParser):
    pass


class _WholePydanticCall(_Whole, PydanticToolsParser):
    pass


StructuredMethod: TypeAlias = Literal["json_schema", "json_mode", "function_calling"]


def call_fields(generation: Generation) -> dict[str, Any]:
    """The calls of an answer, as fields of an `AIMessage`."""
    return {
        "tool_calls": [
            tool_call(name=call.name, args=dict(call.arguments), id=call.id)
            for call in generation.tool_calls
        ],
        "invalid_tool_calls": [
            invalid_tool_call(name=call.name, args=call.text, id=call.id, error=call.error)
            for call in generation.invalid_tool_calls
        ],
    }


def call_chunks(generation: Generation) -> list[Any]:
    """The calls of an answer, as chunks: whole, as they are known at the end only.

    LangChain reads the arguments of chunks as the beginning of JSON, and completes them: what is
    half a call would be one. So the text of an invalid call is given as a JSON string, which can
    be no call's arguments.
    """
    calls: list[tuple[str | None, str, str]] = [
        (call.name, json.dumps(dict(call.arguments), ensure_ascii=False), call.id)
        for call in generation.tool_calls
    ]
    calls += [(call.name, json.dumps(call.text), call.id) for call in generation.invalid_tool_calls]
    return [
        tool_call_chunk(name=name, args=args, id=identifier, index=index)
        for index, (name, args, identifier) in enumerate(calls)
    ]


def structured_output(
    model: BaseChatModel,
    schema: dict[str, Any] | type | None,
    method: StructuredMethod,
    include_raw: bool,
    strict: bool | None,
) -> Runnable[LanguageModelInput, Any]:
    """The model, and a parser of what it is made to write.

    Raises:
        UnsupportedGenerationError: no such method, or a schema is missing.
    """
    if schema is None and method != "json_mode":
        raise UnsupportedGenerationError(f"method={method!r} needs a schema.")
    is_pydantic = isinstance(schema, type) and is_basemodel_subclass(schema)
    traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    bound: Runnable[LanguageModelInput, AIMessage]
    parser: Runnable[Any, Any]
    if method == "function_calling":
        assert schema is not None
        name = openai_tool_of(schema)["function"]["name"]
        bound = model.bind_tools(
            [schema],
            tool_choice=name,
            strict=strict,
            ls_structured_output_format=traced,
        )
        if is_pydantic:
            parser = _WholePydanticCall(tools=[schema], first_tool_only=True)  # type: ignore[list-item]
        else:
            parser = _WholeCall(key_name=name, first_tool_only=True)
    elif method in ("json_schema", "json_mode"):
        wanted: dict[str, Any] = {"type": "json_object"}
        if schema is not None:
            described = json_schema_of(schema)
            named = {"name": str(described.get("title", "answer")), "schema": described}
            wanted = {"type": "json_schema", "json_schema": named}
        bound = model.bind(response_format=wanted, ls_structured_output_format=traced)
        parser = _WholePydantic(pydantic_object=schema) if is_pydantic else _WholeJson()  # type: ignore[arg-type]
    else:
        raise UnsupportedGenerationError(
            f"method must be 'json_schema', 'json_mode' or 'function_calling', got {method!r}."
        )
    if not include_raw:
        return bound | parser
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([unread], exception_key="parsing_error")
