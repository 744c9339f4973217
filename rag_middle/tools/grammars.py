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
    parts_of,
    with_bounds_kept,
    with_whole_bounds,
)
from rag_middle.tools.patterns import read_alike
from rag_middle.wording import Argument

__all__ = ["answer_grammar", "call_grammar"]

#: JSON as chat templates write it. Any whitespace would be allowed otherwise, and small models
#: write some without end.
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

#: Formats of strings that llguidance keeps to.
_FORMATS = {
    *("date", "time", "date-time", "duration"),
    *("email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
#: Characters of names beside a schema of others: the engine refuses most that have more.
_NAMED, _LONGEST_NAME = 20_000, 80
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
        _check_open(list(parts_of(schema)))
        schema = _mapped(schema, _with_names_by_pattern)
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


def _check_open(parts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what `_with_names_by_pattern` would write wrongly, or at great length."""
    named = [
        name
        for part in parts
        if isinstance(part.get("additionalProperties"), Mapping)
        and isinstance(part.get("properties"), Mapping)
        for name in part["properties"]
    ]
    if sum(map(len, named)) > _NAMED or max(map(len, named), default=0) > _LONGEST_NAME:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" or the parameters of a tool hold more than {_NAMED:,} characters of names, or one "
            f"name of more than {_LONGEST_NAME}, beside a schema of additionalProperties. Set "
            "additionalProperties to false.",
        )
    if any("oneOf" in part for part in parts) and any(
        part.get("patternProperties") and part.get("additionalProperties") is not False
        for part in parts
    ):
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold oneOf and patternProperties beside which others may "
            "stand. Set additionalProperties to false there, or replace oneOf by anyOf.",
        )


def _with_names_by_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a pattern for the properties that it does not name.

    Elsewhere the engine may escape any character of such names, and `"\\u0061"` is the name `a`,
    of which the schema may say something else. What a pattern matches it spells in one way, control
    characters aside.
    """
    names, patterns = schema.get("properties") or {}, schema.get("patternProperties")
    others = schema.get("additionalProperties", True)
    if not isinstance(names, Mapping) or not (patterns or (names and others is not False)):
        return schema
    if any(_CONTROLS.search(name) for name in names):
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold a property with a control character in its name "
            "beside properties without a name, which may be spelt alike. Set additionalProperties "
            "to false, and leave out patternProperties.",
        )
    if not patterns:  # else there is no pattern of what the given ones do not match
        says_nothing = others is True or others == {}
        patterns = {"" if says_nothing else f"^({_other_than([*names])})$": others}
    return {**schema, "patternProperties": patterns, "additionalProperties": False}


def _other_than(names: Sequence[str]) -> str:
    """An expression for all texts but these."""
    after: dict[str, list[str]] = {}
    for name in names:
        if name:
            after.setdefault(name[0], []).append(name[1:])
    heads = {head: re.escape(head) for head in after}
    ways = [f"{heads[head]}({_other_than(rests)})" for head, rests in after.items()]
    ways.append((f"[^{''.join(heads.values())}]" if heads else r"[\s\S]") + r"[\s\S]*")
    return "|".join(ways if "" in names else ["", *ways])
