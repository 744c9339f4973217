"""Grammars, in the Lark dialect of llguidance, of what an answer may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.alternatives import leave_open
from rag_middle.tools.definitions import parameters_of
from rag_middle.tools.formats import ARGUMENTS, ToolFormat
from rag_middle.tools.limits import (
    OF_SCHEMAS,
    SCHEMAS,
    check_grammar,
    check_regex,
    check_schema,
    check_size,
    with_bounds_kept,
    with_whole_bounds,
)
from rag_middle.tools.names import check_open, with_names_by_pattern
from rag_middle.tools.patterns import read_alike
from rag_middle.tools.string_formats import with_formats_kept
from rag_middle.wording import Argument

#: JSON as chat templates write it. Any whitespace would be allowed otherwise, and small models
#: write some without end.
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

#: Formats of strings that llguidance keeps to.
_FORMATS = {
    *("date", "time", "date-time", "duration"),
    *("email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
}
_COMPOSING = {"anyOf", "oneOf", "$ref", "if", "dependentSchemas"}


def answer_grammar(response_format: Mapping[str, Any]) -> str | None:
    """The rule of a whole answer; None where any text will do.

    Args:
        response_format: as `check_response_format` takes it.
    """
    kind = response_format["type"]
    if kind == "text":
        return None
    if kind == "grammar":
        grammar = str(response_format["grammar"])
        check_grammar(grammar)
        return grammar
    if kind == "regex":
        check_regex(str(response_format["regex"]))
        # A slash would end the expression; what stands behind a backslash is escaped already.
        pattern = re.sub(
            r"\\.|/",
            lambda part: r"\/" if part[0] == "/" else part[0],
            str(response_format["regex"]),
            flags=re.DOTALL,
        )
        return f"start: /{pattern}/"
    schema: Any = {"type": "object"}
    if kind == "json_schema":
        schema = response_format["json_schema"]["schema"]
    check_size([schema])
    return f"start: {_json(schema)}"


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    form: ToolFormat,
    template: str,
    token_id: Callable[[str], int | None],
    answer: str | None = None,
) -> str:
    """The grammar of one call of one of the tools.

    Args:
        tools: to choose from.
        form: with a form of forced calls.
        template: the chat template's text.
        token_id: the id of a text that is one control token.
        answer: a whole grammar that the answer may follow instead.
    """
    assert form.forced is not None
    rules, names = [], []
    check_size([parameters_of(tool) for tool in tools])
    for index, tool in enumerate(tools):
        parts = [
            f"arguments_{index}" if part is ARGUMENTS else _literal(part, form, token_id)
            for part in form.forced(tool["function"]["name"], template)
        ]
        names.append(f"call_{index}")
        rules.append(f"call_{index}: {' '.join(parts)}")
        rules.append(f"arguments_{index}: {_json(parameters_of(tool), len(tools))}")
    if answer is not None:
        names.append("answer")
        rules.append(f"answer: %lark {{\n{answer}\n}}")  # its names are its own
    return "\n".join([f"start: {' | '.join(names)}", *rules])


def _literal(text: str, form: ToolFormat, token_id: Callable[[str], int | None]) -> str:
    token = token_id(text) if text in form.markers else None
    return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


def _json(schema: Mapping[str, Any], of_schemas: int = 1) -> str:
    """The rule of a schema, one of so many."""
    try:
        schema = _mapped(schema, _without_what_says_nothing)
        schema = _mapped(schema, with_whole_bounds)
        check_schema(schema, of_schemas)
        schema = _mapped(with_bounds_kept(schema), _with_patterns)
        if not _is_composed(schema):
            leave_open(schema)
            schema = _mapped(schema, _closed)
        check_open(schema)
        schema = _mapped(_mapped(schema, with_names_by_pattern), with_formats_kept)
    except RecursionError as error:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold a schema nested too deeply. Make it flatter.",
        ) from error
    return "%json " + json.dumps({**schema, "x-guidance": _WRITING})


def _mapped(schema: Any, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Any:
    """The schema with every schema in it changed; constants and examples stay."""
    if isinstance(schema, list | tuple):
        return [_mapped(item, change) for item in schema]
    if not isinstance(schema, Mapping):
        return schema  # true and false are schemas
    below = {}
    for key, value in schema.items():
        if key in OF_SCHEMAS and isinstance(value, Mapping):
            value = {name: _mapped(item, change) for name, item in value.items()}
        elif key in SCHEMAS:
            value = _mapped(value, change)
        below[key] = value
    return change(below)


def _without_what_says_nothing(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema: neither does a format that one does not know."""
    if isinstance(name := schema.get("format"), str) and name not in _FORMATS:
        del schema["format"]
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    return schema


def _with_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = read_alike(pattern)
    if isinstance(patterns := schema.get("patternProperties"), Mapping):
        schema["patternProperties"] = {read_alike(str(p)): part for p, part in patterns.items()}
    return schema


def _is_composed(schema: Mapping[str, Any]) -> bool:
    """Whether parts of it have to let each other's properties pass."""
    composed = False

    def look(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal composed
        composed |= "allOf" in part or ("properties" in part and not _COMPOSING.isdisjoint(part))
        return part

    _mapped(schema, look)
    return composed


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without the freedom to invent properties where it names some: a model would."""
    is_open = "properties" in schema and "patternProperties" not in schema
    return {"additionalProperties": False, **schema} if is_open else schema
