"""Tools, choices of tools and formats of answers as callers pass them, in OpenAI's form."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import levels_of

_EXAMPLE = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
#: Characters of tools or a form as JSON, which is read several times before the engine has it: a
#: second or two, in which a server's model does nothing else.
_LONGEST = 500_000
#: Levels of lists and mappings in plain JSON.
_MOST_NESTED = 100
#: Families of models write the ends of names, and what surrounds calls, with these.
_MARKER_CHARACTERS = frozenset("<>[]{}")
#: What each type of `response_format` needs beside its type, and how that looks.
_FORMAT_FIELDS = {
    "text": ("", ""),
    "json_object": ("", ""),
    "json_schema": ("json_schema", '{"name": ..., "schema": {...}}'),
    "regex": ("regex", "a string"),
}


def _new_id() -> str:
    # Nine letters and digits: Mistral's template takes no other ids.
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model asks for.

    Attributes:
        name: of the tool. The model may name one that does not exist.
        arguments: a JSON object, of the tool's schema only where the call was forced.
        id: tells it from other calls; a tool's answer names it.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default_factory=_new_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidToolCall:
    """Text that begins like a call and is none, as when the answer was cut by its length.

    Attributes:
        text: as the model wrote it.
        error: what is wrong with it.
        name: of the tool, as far as it can be read.
        id: as of `ToolCall`.
    """

    text: str
    error: str
    name: str | None = None
    id: str = field(default_factory=_new_id)


def check_tools(tools: Any) -> None:
    """Raise `UnsupportedGenerationError` unless these are tools in OpenAI's form, or None."""
    if tools is None:
        return
    if isinstance(tools, Mapping | str) or not isinstance(tools, Sequence):
        _refuse("tools", f" must be a list of {_EXAMPLE}, got {type(tools).__name__}.")
    names = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name or tool.get("type", "function") != "function":
            _refuse("tools", f" must hold {_EXAMPLE}, got {tool!r:.100}.")
        if name != name.strip() or not name.isprintable() or _MARKER_CHARACTERS & {*name}:
            _refuse(
                "tools",
                f": {name!r:.100} is no name that can be read in a call. Leave out "
                f"{' '.join(sorted(_MARKER_CHARACTERS))}, line ends, and spaces around it.",
            )
        parameters = tool["function"].get("parameters") or {}
        if not _is_object_schema(parameters):
            _refuse(
                "tools",
                f": the parameters of {name!r} must be a JSON schema of an object, with its "
                f"properties by name, got {parameters!r:.100}.",
            )
        names.append(name)
    if len({*names}) < len(names):
        _refuse("tools", f" must have names of their own, got {names}.")
    _check_plain("tools", tools)


def _is_object_schema(parameters: Any) -> bool:
    if not isinstance(parameters, Mapping):
        return False
    kind = with_top_resolved(parameters).get("type", "object")
    kinds = kind if isinstance(kind, list | tuple) else [kind]
    return "object" in kinds and isinstance(parameters.get("properties", {}), Mapping)


def _refuse(name: str, problem: str) -> NoReturn:
    raise UnsupportedGenerationError(f"{name}{problem}")


def _check_plain(name: str, value: Any) -> None:
    try:
        length = len(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(name, f" must be plain JSON: {error}.")
    if length > _LONGEST:
        _refuse(name, f" has {length:,} characters, and {_LONGEST:,} are the most. Shorten it.")
    if levels_of(value) > _MOST_NESTED:
        _refuse(name, f" is nested more than {_MOST_NESTED} levels deep. Make it flatter.")


def forced_tools(
    choice: str | Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The tools of which one has to be called; none of them where the model decides.

    Args:
        choice: ``"auto"``, ``"none"``, ``"any"`` (or ``"required"``), a tool's name, or
            ``{"type": "function", "function": {"name": ...}}``.
        tools: to choose from.

    Raises:
        UnsupportedGenerationError: no such choice.
    """
    if choice in ("auto", "none"):
        return []
    name: Any = choice
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
    is_any = choice in ("any", "required")
    chosen = [tool for tool in tools if is_any or tool["function"]["name"] == name]
    if not chosen:
        names = [tool["function"]["name"] for tool in tools]
        known = f"is no tool: pass 'auto', 'none', 'any', or one of {names}"
        raise UnsupportedGenerationError(
            f"tool_choice={choice!r:.100} {known if tools else 'needs tools: pass some'}."
        )
    return chosen


def parameters_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments; of no arguments where it says none."""
    parameters = with_top_resolved(tool["function"].get("parameters") or {})
    # Arguments are an object, whatever else the schema takes.
    if not {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(parameters):  # those name arguments
        return {**parameters, "type": "object"}
    return {"properties": {}, **parameters, "type": "object"}


def with_top_resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with what its top's `$ref` names at the top, where chat templates look for it.

    Schemas of recursive classes consist of definitions and such a reference. It stays where both
    sides say different things.
    """
    _, _, path = str(schema.get("$ref")).partition("#/")
    kind, _, name = path.partition("/")
    definitions = schema.get(kind) if kind in ("$defs", "definitions") else None
    target = definitions.get(name) if isinstance(definitions, Mapping) else None
    if not isinstance(target, Mapping):
        return schema
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    shared = target.keys() & beside.keys() - {"title", "description"}
    if any(target[key] != beside[key] for key in shared):
        return schema
    return {**target, **beside}


def check_response_format(response_format: Any) -> None:
    """Raise `UnsupportedGenerationError` unless it is one of the formats, or None."""
    if response_format is None:
        return
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if not isinstance(kind, str) or kind not in _FORMAT_FIELDS:
        _refuse(
            "response_format",
            f" must be a mapping whose type is one of {', '.join(_FORMAT_FIELDS)}, got "
            f"{response_format!r:.100}.",
        )
    needed, example = _FORMAT_FIELDS[kind]
    value = response_format.get(needed)
    if kind == "json_schema" and isinstance(value, Mapping):
        value = value.get("schema")
    if needed and not isinstance(value, Mapping if kind == "json_schema" else str):
        _refuse("response_format", f" of type {kind} needs {needed!r}: {example}.")
    for name, item in response_format.items():
        if name not in ("type", needed) and item is not None:
            # Elsewhere {"type": "json_object", "schema": ...} asks for that schema.
            _refuse(
                "response_format",
                f" of type {kind} has no {name!r:.100}. Leave it out; a schema belongs into "
                '{"type": "json_schema", "json_schema": {"schema": ...}}.',
            )
    _check_plain("response_format", response_format)
