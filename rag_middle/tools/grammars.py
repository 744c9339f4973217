"""Grammars, in the Lark dialect of llguidance, of what an answer may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rag_middle.tools.definitions import parameters_of
from rag_middle.tools.formats import ARGUMENTS, ToolFormat

__all__ = ["answer_grammar", "call_grammar"]

#: JSON as chat templates write it. Any whitespace would be allowed otherwise, and small models
#: write some without end.
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def answer_grammar(response_format: Mapping[str, Any]) -> str | None:
    """The rule of a whole answer; None where any text will do.

    Args:
        response_format: as `check_response_format` takes it.
    """
    kind = response_format["type"]
    if kind == "text":
        return None
    if kind == "grammar":
        return str(response_format["grammar"])
    if kind == "regex":
        pattern = re.sub(r"(?<!\\)/", r"\/", str(response_format["regex"]))
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
        answer: a grammar that the answer may follow instead.
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
        rules.append(f"arguments_{index}: {_json(parameters_of(tool))}")
    if answer is not None:
        names.append("answer")
        rules.append("answer" + answer.removeprefix("start"))
    return "\n".join([f"start: {' | '.join(names)}", *rules])


def _literal(text: str, form: ToolFormat, token_id: Callable[[str], int | None]) -> str:
    token = token_id(text) if text in form.markers else None
    return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


def _json(schema: Mapping[str, Any]) -> str:
    if "allOf" not in json.dumps(schema):  # whose parts have to let each other's properties pass
        schema = _closed(schema)
    return "%json " + json.dumps({**schema, "x-guidance": _WRITING})


def _closed(schema: Any) -> Any:
    """The schema without the freedom to invent properties where it names some: a model would."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    below = {
        key: {name: _closed(item) for name, item in value.items()}
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping)
        else _closed(value)
        if key in ("items", "prefixItems", "anyOf", "oneOf")
        else value
        for key, value in schema.items()
    }
    is_open = "properties" in schema and "patternProperties" not in schema
    return {"additionalProperties": False, **below} if is_open else below
