"""Grammars, in the Lark dialect of llguidance, of what an answer may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import lcm
from typing import Any

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import levels_of
from rag_middle.tools.definitions import parameters_of
from rag_middle.tools.formats import ARGUMENTS, ToolFormat

#: JSON as chat templates write it. Any whitespace would be allowed otherwise, and small models
#: write some without end.
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

#: Formats of strings that llguidance keeps to.
_FORMATS = {
    *("date", "time", "date-time", "duration"),
    *("email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
}
_COMPOSING = {"anyOf", "oneOf", "$ref", "if", "dependentSchemas"}
#: Keys of a JSON schema that hold schemas (one or a list), and those that hold them by name.
_SCHEMAS = {
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
}
_OF_SCHEMAS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}

# What llguidance follows without a limit of its own.
_MOST_REMAINDERS = 20_000  # of multipleOf, a tenth of a second; a million take twelve
_MOST_LEVELS = 1_500  # of a schema times its references; at 3,000 the process's stack ends


def answer_grammar(response_format: Mapping[str, Any]) -> str | None:
    """The rule of a whole answer; None where any text will do.

    Args:
        response_format: as `check_response_format` takes it.
    """
    kind = response_format["type"]
    if kind == "text":
        return None
    if kind == "regex":
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
        _check_schema(schema)
    return f"start: {_json(schema)}"


def call_grammar(
    tools: Sequence[Mapping[str, Any]],
    form: ToolFormat,
    token_id: Callable[[str], int | None],
    answer: str | None = None,
) -> str:
    """The grammar of one call of one of the tools.

    Args:
        tools: to choose from.
        form: with a form of forced calls.
        token_id: the id of a text that is one control token.
        answer: a whole grammar that the answer may follow instead.
    """
    schemas = [parameters_of(tool) for tool in tools]
    _check_schema(schemas)
    rules, names = [], []
    for index, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        parts = [
            f"arguments_{index}" if part == ARGUMENTS else _literal(part, form, token_id)
            for part in form.parts(tool["function"]["name"])
        ]
        names.append(f"call_{index}")
        rules += [f"call_{index}: {' '.join(parts)}", f"arguments_{index}: {_json(schema)}"]
    if answer is not None:
        names.append("answer")
        rules.append(f"answer: %lark {{\n{answer}\n}}")  # its names are its own
    return "\n".join([f"start: {' | '.join(names)}", *rules])


def _literal(text: str, form: ToolFormat, token_id: Callable[[str], int | None]) -> str:
    token = token_id(text) if text in form.markers else None
    return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


def _json(schema: Mapping[str, Any]) -> str:
    """The rule of a schema."""
    schema = _mapped(schema, _without_empty_keywords)
    parts = _parts(schema)
    # Parts that are put together have to let each other's properties pass.
    if not any("allOf" in it or ("properties" in it and _COMPOSING & it.keys()) for it in parts):
        schema = _mapped(schema, _closed)
    return "%json " + json.dumps({**schema, "x-guidance": _WRITING})


def _check_schema(schema: Any) -> None:
    """Refuse schemas whose remainders or references the engine cannot follow."""
    parts = _parts(schema)
    multiples = [part.get("multipleOf") for part in parts]
    counts = [_remainders(it) for it in multiples if isinstance(it, int | float)]
    counts = [count for count in counts if count]  # with a zero, any lcm is zero
    # The sum first: the lcm of many large numbers takes seconds.
    if sum(counts) > _MOST_REMAINDERS or lcm(*counts) > _MOST_REMAINDERS:
        raise UnsupportedGenerationError(
            "response_format or the parameters of tools hold multiples of so large numbers, or "
            f"so many, that constrained decoding would count to more than {_MOST_REMAINDERS}. "
            "Leave multipleOf out and check the answer for it."
        )
    references = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
    if len(references) * levels_of(schema) > _MOST_LEVELS:
        raise UnsupportedGenerationError(
            "response_format or the parameters of tools hold too many references in a schema of "
            "so many levels. Write some of the parts where they are used."
        )


def _remainders(multiple: float) -> int:
    """What a multiple is counted in: 25 for 0.25; 0 for what no number is a multiple of."""
    number = abs(Decimal(repr(+multiple)).normalize())
    if not number.is_finite():  # JSON's 1e400, which the engine refuses
        return 0
    return int(number.scaleb(max(0, -int(number.as_tuple().exponent))))


def _parts(value: Any) -> list[Mapping[str, Any]]:
    """All mappings in plain JSON, the whole included."""
    parts, waiting = [], [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            parts.append(part)
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return parts


def _mapped(schema: Any, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Any:
    """The schema with every schema in it changed; constants and examples stay."""
    if isinstance(schema, list | tuple):
        return [_mapped(item, change) for item in schema]
    if not isinstance(schema, Mapping):
        return schema  # true and false are schemas
    below = {}
    for key, value in schema.items():
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            value = {name: _mapped(item, change) for name, item in value.items()}
        elif key in _SCHEMAS:
            value = _mapped(value, change)
        below[key] = value
    return change(below)


def _without_empty_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    """Without keywords that ask for nothing, as a format does that is not known."""
    if isinstance(name := schema.get("format"), str) and name not in _FORMATS:
        del schema["format"]
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    return schema


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without the freedom to invent properties where it names some: a model would."""
    is_open = "properties" in schema and "patternProperties" not in schema
    return {"additionalProperties": False, **schema} if is_open else schema
