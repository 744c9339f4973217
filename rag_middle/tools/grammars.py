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
_MOST_RULES = 1_500  # of a grammar; at 6,000 the stack ends
_LONGEST_GRAMMAR, _MOST_SCHEMAS = 100_000, 100


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
        _check_grammar(grammar)
        return grammar
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
    _check_schema(schema, of_schemas)
    schema = _mapped(schema, _without_what_says_nothing)
    if not _is_composed(schema):
        schema = _mapped(schema, _closed)
    return "%json " + json.dumps({**schema, "x-guidance": _WRITING})


def _check_schema(schema: Any, of_schemas: int = 1) -> None:
    """Refuse a schema, one of so many, whose remainders or references the engine cannot follow."""
    parts, waiting = list[Mapping[str, Any]](), [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            parts.append(part)
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    remainders = [
        _remainders(value)
        for part in parts
        if isinstance(value := part.get("multipleOf"), int | float)
    ]
    most = _MOST_REMAINDERS // of_schemas
    if max(sum(remainders), lcm(*remainders)) > most:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold multiples of so large numbers, or so many, that "
            f"constrained decoding would count to more than {most}. Leave multipleOf out and check "
            "the answer for it.",
        )
    references = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
    if len(references) * levels_of(schema) > _MOST_LEVELS:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold too many references in a schema of so many levels. "
            "Write some of the parts where they are used.",
        )


def _remainders(multiple: float) -> int:
    number = Decimal(repr(+multiple))
    if not number.is_finite():
        return 0
    _, digits, exponent = number.normalize().as_tuple()
    zeros: int = 10 ** max(int(exponent), 0)
    return int("".join(map(str, digits))) * zeros


def _check_grammar(grammar: str) -> None:
    """Refuse a grammar whose rules, or schemas in them, the engine cannot follow."""
    begun = [match.end() for match in re.finditer(r"%json\s*", grammar)][: _MOST_SCHEMAS + 1]
    rules = grammar.count(":")
    if len(grammar) <= _LONGEST_GRAMMAR and len(begun) <= _MOST_SCHEMAS:
        for start in begun:
            try:
                schema, end = json.JSONDecoder().raw_decode(grammar, start)
            except (ValueError, RecursionError):  # no JSON, which the engine says
                continue
            _check_schema(schema, len(begun))
            rules -= grammar.count(":", start, end)
    if len(grammar) > _LONGEST_GRAMMAR or len(begun) > _MOST_SCHEMAS or rules > _MOST_RULES:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" holds a grammar of more than {_LONGEST_GRAMMAR:,} characters, {_MOST_RULES:,} rules "
            f"or {_MOST_SCHEMAS} schemas. Make it smaller.",
        )
    if "::" in grammar:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " holds a grammar with ::, by which rules have parameters that may be followed without "
            'end. Write the rules out, and :: in a text as ":" ":".',
        )


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


def _without_what_says_nothing(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema: neither does a format that one does not know."""
    if isinstance(name := schema.get("format"), str) and name not in _FORMATS:
        del schema["format"]
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
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
