"""What constrained decoding may be asked to build: the engine itself counts and recurses freely.

It makes a state for every remainder of ``multipleOf``, and follows references and rules by
recursion, which ends the process where the stack does: on 8 MiB, between 2,000 and 4,000 levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import levels_of
from rag_middle.wording import Argument

__all__ = ["MOST_NESTED", "OF_SCHEMAS", "SCHEMAS", "check_grammar", "check_schema"]

#: Keys of a JSON schema that hold schemas (one or a list), and those that hold them by name.
SCHEMAS = {
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
}
OF_SCHEMAS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
#: Levels of lists and mappings in plain JSON.
MOST_NESTED = 100

_MERGING = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples"}  # what looks like a schema there is none
_MOST_REMAINDERS = 20_000  # of a request: about a fifth of a second
_MOST_LEVELS = 500  # of what a schema refers to, all together
_MOST_OPERATORS = 1_000
_OPERATORS = frozenset(":|([{?*+~")
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/')
_INLINE = re.compile(r"%json\s*")


def check_schema(schema: Mapping[str, Any], of_schemas: int = 1) -> None:
    """Refuse a JSON schema, one of so many of a request, that takes the engine too far.

    Raises:
        UnsupportedGenerationError: it is nested too deeply, by itself or by references; a reference
            leads where no schema is; or multiples have too many remainders.
    """
    if levels_of(schema) > MOST_NESTED:
        raise _refused("nested too deeply. Make it flatter.")
    parts = list(_parts(schema))
    targets = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
    if unknown := sorted(target for target in targets if not _leads_to_schema(target)):
        raise _refused(
            f"with a reference to {unknown[0][:80]!r}. Refer to '#/$defs/NAME', where the schema "
            "is then looked at."
        )
    if sum(levels_of(_target(schema, target)) for target in targets) > _MOST_LEVELS:
        raise _refused("with too many references to others. Write the parts where they are used.")
    most = _MOST_REMAINDERS // of_schemas
    multiples = [number for part in parts for number in _multiple(part, most)]
    merges = any(not _MERGING.isdisjoint(part) for part in parts)
    if max(sum(multiples), lcm(*multiples) if merges else 0) > most:
        raise _refused(
            "with multiples of so large numbers, or so many, that constrained decoding would count "
            f"to more than {most}. Leave multipleOf out of it and check the answer for it."
        )


def check_grammar(grammar: str) -> None:
    """Refuse a grammar whose rules, groups and schemas take the engine too far.

    Raises:
        UnsupportedGenerationError: it has too many, or a schema in it is refused.
    """
    at, operators, schemas = 0, 0, []
    while at < len(grammar):
        if literal := _LITERAL.match(grammar, at):
            at = literal.end()
        elif inline := _INLINE.match(grammar, at):
            try:
                schema, at = json.JSONDecoder().raw_decode(grammar, inline.end())
            except ValueError:
                at = inline.end()  # the engine says what is wrong
            except RecursionError as error:
                raise _refused("nested too deeply. Make it flatter.") from error
            else:
                schemas.append(schema)
        else:
            operators += grammar[at] in _OPERATORS
            at += 1
    if operators > _MOST_OPERATORS:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" holds a grammar of {operators} rules, groups and alternatives, and no more than "
            f"{_MOST_OPERATORS} are followed. Make it smaller.",
        )
    for schema in schemas:
        if isinstance(schema, Mapping):
            check_schema(schema, len(schemas))


def _refused(what: str) -> UnsupportedGenerationError:
    return UnsupportedGenerationError(
        Argument("response_format"), f" or the parameters of a tool hold a schema {what}"
    )


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping that may be a schema."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += [value for key, value in part.items() if key not in _DATA]
        elif isinstance(part, list | tuple):
            waiting += part


def _leads_to_schema(target: str) -> bool:
    """Whether a reference passes keys only that hold schemas, so that these have been looked at."""
    start, *steps = target.split("/")
    if start != "#":
        return False
    while steps:
        key = steps.pop(0)
        if key in OF_SCHEMAS and steps:
            steps.pop(0)  # a name
        elif key not in SCHEMAS:
            return False
        elif steps and steps[0].isdigit():
            steps.pop(0)
    return True


def _target(schema: Any, target: str) -> Any:
    """What a reference leads to; None where nothing is, which the engine says."""
    for step in target.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list | tuple) and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        else:
            return None
    return schema


def _multiple(part: Mapping[str, Any], most: int) -> Iterator[int]:
    """The whole number of remainders that a part's ``multipleOf`` has, about."""
    value = part.get("multipleOf")
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = Decimal(repr(value)).normalize()
        if number.is_finite() and number:
            _, digits, exponent = number.as_tuple()
            zeros = min(max(int(exponent), 0), len(str(most)))
            yield int("".join(map(str, digits))) * 10**zeros
