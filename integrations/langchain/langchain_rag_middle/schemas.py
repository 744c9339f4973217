"""JSON schemas of what LangChain takes as tools and forms, without what LangChain leaves out.

LangChain writes definitions out wherever a schema refers to them. A schema that leads back to
itself cannot be written out: LangChain puts `{}` there, which anything fits. And of a dictionary
without `properties` it keeps nothing at all. So what has definitions, or no properties, stays as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from langchain_core.tools import BaseTool, Tool
from langchain_core.tools.base import create_schema_from_function
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from typing_extensions import is_typeddict

from rag_middle import UnsupportedGenerationError
from rag_middle.integration import with_top_resolved

ToolLike: TypeAlias = Mapping[str, Any] | type | Callable[..., Any] | BaseTool

#: One of these tells a tool in the form of some provider from a JSON schema, or its type does.
_TOOL_KEYS = {"function", "name", "toolSpec"}
_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def openai_tool_of(tool: ToolLike, *, strict: bool | None = None) -> dict[str, Any]:
    """The tool in OpenAI's form, with all that the schema of its arguments says.

    Raises:
        UnsupportedGenerationError: it is a schema of something else than an object.
    """
    own = _own_schema(tool)
    if own is None:
        return convert_to_openai_tool(tool, strict=strict)
    own = dict(with_top_resolved(own))
    if isinstance(tool, Mapping):
        kind = own.get("type", "object")
        if kind != "object":
            raise UnsupportedGenerationError(
                f"A tool's arguments are an object, and the schema is of type {kind!r}. Wrap it in "
                "an object, or use method='json_schema'."
            )
        tool = {"properties": {}, **own}
    converted = convert_to_openai_tool(tool, strict=strict)
    if "properties" in own and own.keys().isdisjoint(("$defs", "definitions")):
        return converted
    parameters = {key: own[key] for key in own if key not in ("title", "description")}
    return {**converted, "function": {**converted["function"], "parameters": parameters}}


def json_schema_of(schema: ToolLike) -> dict[str, Any]:
    """The JSON schema of an answer: a schema or a class's own as it is, else that of a tool."""
    if isinstance(schema, Mapping) or (isinstance(schema, type) and is_basemodel_subclass(schema)):
        own = _own_schema(schema)
        if own is not None:
            return own
    return convert_to_json_schema(openai_tool_of(schema))


def _own_schema(tool: Any) -> dict[str, Any] | None:
    """What the tool says of its arguments; None where LangChain reads all of it."""
    if isinstance(tool, Mapping):
        kind = tool.get("type", "object")
        is_schema = _TOOL_KEYS.isdisjoint(tool) and (kind in _JSON_TYPES or isinstance(kind, list))
        return dict(tool) if is_schema else None
    if isinstance(tool, BaseTool):
        if isinstance(tool, Tool) and not tool.args_schema:
            return None
        tool = tool.tool_call_schema
        if isinstance(tool, dict):
            return tool
    elif not isinstance(tool, type) and callable(tool):
        tool = create_schema_from_function(
            tool.__name__,
            tool,
            filter_args=(),
            parse_docstring=True,
            error_on_invalid_docstring=False,
            include_injected=False,
        )
    if is_typeddict(tool) or not (isinstance(tool, type) and is_basemodel_subclass(tool)):
        return None
    describe: Any = getattr(tool, "model_json_schema", None) or tool.schema  # type: ignore[attr-defined]
    schema: dict[str, Any] = describe()
    return schema
