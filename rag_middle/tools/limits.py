"""What constrained decoding may be asked to build: the engine itself counts and recurses freely.

It makes a state for every remainder of ``multipleOf``, and follows references and rules by
recursion, which ends the process where the stack does: on 8 MiB, between 2,000 and 4,000 levels.
Where patterns have to match at once, one step may take time exponential in their number; optional
properties and disjoint patterns cost their number squared, texts their length at every byte.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from math import inf, lcm, nextafter
from typing import Any, TypeGuard

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.plain_data import levels_of
from rag_middle.tools.patterns import read_alike
from rag_middle.wording import Argument

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
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_MOST_REMAINDERS = 20_000  # of a request: about a fifth of a second
_LONGEST_REFERENCE = 2_000  # characters, which are followed again wherever it stands
_MOST_LEVELS = 500  # of what a schema refers to, all together
_MOST_PARTS = 5_000  # of a request: a second
_MOST_PAIRS = 1_000_000  # of optional properties of one object: a fifth of a second
_MOST_DISJOINT = 10_000  # pairs of patterns of names: a third of a second
_MOST_AT_ONCE = 5  # patterns that a string has to match; eight may take a minute and a gigabyte
_LONG = 200
_MOST_IN_LONG = 20_000  # characters of texts that are long: ten milliseconds a token
_MOST_OPERATORS = 1_000
_OPERATORS = frozenset(":|([{?*+~")
# As the engine reads them: an expression may hold line ends, and a token's name quotation marks.
_LITERAL = re.compile(
    r'"(?:[^"\\\n]|\\.)*+(?P<quote>"?)|(?P<comment>(?://|#)[^\n]*)|<[^<>\s]+>'
    r"|/(?:[^/\\]|\\.)++(?P<slash>/?)"
)
_INLINE = re.compile(r"%json\s*")
_AT_ONCE = re.compile(r"&|~(?!\s*[0-9])")
#: Integers that doubles hold, in which the engine counts.
_WHOLE = 2**53
#: The last double before the end of the engine's own integers.
_FARTHEST = 2**63 - 1024


def check_schema(schema: Mapping[str, Any], of_schemas: int = 1) -> None:
    """Refuse a JSON schema, one of so many of a request, that takes the engine too far.

    Raises:
        UnsupportedGenerationError: it is nested too deeply, by itself or by references; a reference
            leads where no schema is; lists begin by two drafts of JSON Schema at once; multiples
            have too many remainders; numbers are beyond those that the engine tells apart; or a
            string has to match too many patterns at once.
    """
    if levels_of(schema) > MOST_NESTED:
        raise _refused("nested too deeply. Make it flatter.")
    parts = list(parts_of(schema))
    targets = {part["$ref"] for part in parts if isinstance(part.get("$ref"), str)}
    if unknown := sorted(target for target in targets if not _leads_to_schema(target)):
        raise _refused(
            f"with a reference to {unknown[0][:80]!r}. Refer to '#/$defs/NAME', where the schema "
            "is then looked at."
        )
    if _levels_of_targets(schema, targets) > _MOST_LEVELS:
        raise _refused("with too many references to others. Write the parts where they are used.")
    most = _MOST_REMAINDERS // of_schemas
    multiples = [number for part in parts for number in _multiple(part, most)]
    merges = any(not _MERGING.isdisjoint(part) for part in parts)
    # What they have in common is of use, and quick to find, where they are small.
    if sum(multiples) > most or (merges and lcm(*multiples) > most):
        raise _refused(
            "with multiples of so large numbers, or so many, that constrained decoding would count "
            f"to more than {most}. Leave multipleOf out of it and check the answer for it."
        )
    if any("prefixItems" in part and _has_older_items(part) for part in parts):
        raise _refused(
            "with prefixItems beside a list of items or additionalItems, which are of different "
            "drafts. Write prefixItems, and items for the rest."
        )
    _check_numbers(parts)
    if any(_needs_names(part) for part in parts):
        raise _refused(
            "with minProperties beyond the required ones by more than one. Constrained decoding "
            "may write a property twice to get there: leave it out and check the answer for it."
        )
    try:
        at_once = _patterns_at_once(schema)
    except RecursionError as error:
        raise _refused("with too many references to others, one in another.") from error
    if at_once > _MOST_AT_ONCE:
        raise _refused(
            f"with more than {_MOST_AT_ONCE} patterns and formats that one string may have to "
            "match. Leave some out and check the answer for them."
        )


def check_size(schemas: Sequence[Any]) -> None:
    """Refuse the JSON schemas of a request if they have too many parts, or too long texts.

    Raises:
        UnsupportedGenerationError: they have.
    """
    parts = [part for schema in schemas for part in parts_of(schema)]
    values = [value for part in parts for value in _data_of(part)]
    composed = sum(isinstance(value, Mapping | list | tuple) for value in values)
    pairs = disjoint = 0
    texts = [value for value in values if isinstance(value, str)]
    for value in values:
        texts += _texts(value if isinstance(value, Mapping) else None)
    for part in parts:
        names, required, patterns = map(
            _texts, map(part.get, ("properties", "required", "patternProperties"))
        )
        pairs += len({*names} - {*required}) ** 2
        disjoint += len(patterns) * (len(patterns) + len(names))
        texts += [*names, *required, *patterns, *_texts([part.get("pattern")])]
    if len(parts) + composed > _MOST_PARTS or pairs > _MOST_PAIRS or disjoint > _MOST_DISJOINT:
        raise _refused("with too many parts. Make it smaller.")
    _check_texts(piece for text in texts for piece in text.split("|"))


def check_regex(pattern: str) -> None:
    """Refuse a regular expression with too much text.

    Raises:
        UnsupportedGenerationError: it has.
    """
    _check_texts(pattern.split("|"))


def check_grammar(grammar: str) -> None:
    """Refuse a grammar whose rules, groups and schemas take the engine too far.

    Raises:
        UnsupportedGenerationError: it has too many, or a schema in it is refused.
    """
    at, operators, at_once, schemas, texts = 0, 0, 0, [], []
    # Where texts and expressions that do not end break off. Before that, the same sign is escaped
    # and begins none that ends: looking again from each would take the square of the length.
    broken = {'"': 0, "/": 0}
    while at < len(grammar):
        literal = None
        if at >= broken.get(grammar[at], 0):
            literal = _LITERAL.match(grammar, at)
        if literal and "" in (literal["quote"], literal["slash"]):
            broken[grammar[at]] = literal.end()
            literal = None
        if literal:
            at = literal.end()
            if not literal["comment"]:
                texts += literal[0].split("|")
        elif inline := _INLINE.match(grammar, at):
            try:
                schema, at = json.JSONDecoder().raw_decode(grammar, inline.end())
            except ValueError as error:
                raise UnsupportedGenerationError(
                    Argument("response_format"),
                    f" holds a grammar with %json before what is no JSON: {error}.",
                ) from error
            except RecursionError as error:
                raise _refused("nested too deeply. Make it flatter.") from error
            else:
                schemas.append(schema)
        elif grammar.startswith("::", at):
            raise UnsupportedGenerationError(
                Argument("response_format"),
                " holds a grammar whose rules have parameters, which may be followed without end. "
                "Write the rules out.",
            )
        else:
            operators += grammar[at] in _OPERATORS
            at_once += _AT_ONCE.match(grammar, at) is not None
            at += 1
    _check_texts(texts)
    if at_once >= _MOST_AT_ONCE:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" holds a grammar with {at_once} of & and ~, and fewer than {_MOST_AT_ONCE} are "
            "followed. Leave some out and check the answer for them.",
        )
    if operators > _MOST_OPERATORS:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" holds a grammar of {operators} rules, groups and alternatives, and no more than "
            f"{_MOST_OPERATORS} are followed. Make it smaller.",
        )
    check_size(schemas)
    for schema in schemas:
        if isinstance(schema, Mapping):
            check_schema(schema, len(schemas))
            if with_bounds_kept(deepcopy(schema)) != schema or any(
                read_alike(pattern) != pattern
                for part in parts_of(schema)
                for pattern in _texts([part.get("pattern"), *_texts(part.get("patternProperties"))])
            ):
                raise UnsupportedGenerationError(
                    Argument("response_format"),
                    " holds a grammar with a schema whose bounds or patterns its engine would "
                    "widen. Ask for that schema as json_schema.",
                )


def with_whole_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with bounds that the engine keeps to, as near within its own as there are.

    It counts in doubles, whose neighbours are more than one apart beyond 2^53, and takes an end of
    its own integers for any number beyond.
    """
    for key in _BOUNDS:
        bound = schema.get(key)
        if not _is_number(bound) or abs(bound) < _WHOLE:
            continue
        is_least = "inimum" in key
        if (bound < -_FARTHEST) if is_least else (bound > _FARTHEST):
            bound = -_FARTHEST if is_least else _FARTHEST
        elif abs(bound) <= _FARTHEST:
            bound = _inner(bound, inf if is_least else -inf, key.startswith("exclusive"))
        schema[key] = bound
    return schema


def with_bounds_kept(schema: Any) -> Any:
    """A schema of new mappings, with excluded whole bounds moved inside where they would be taken.

    Of ``0 < x <= 0.5`` the engine includes the 0: a whole number that is excluded, and less than
    one away from the bound of the other side.
    """
    parts = [part for part in parts_of(schema) if isinstance(part, dict)]
    for key, others, towards in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1),
    ):
        # Of any part: they may come together by references.
        ends = sorted(
            end for part in parts for other in others if _is_number(end := part.get(other))
        )
        for part in parts:
            bound = part.get(key)
            if not _is_number(bound) or bound % 1:  # infinities too
                continue
            least, most = sorted((bound, bound + towards))
            if bisect_right(ends, least) < bisect_left(ends, most):
                inner = float(Decimal(bound) + Decimal(towards) / 10**9)
                part[key] = nextafter(bound, inf * towards) if inner == bound else inner
    return schema


def _inner(bound: float, direction: float, excluded: bool) -> int:
    """The nearest double that is no smaller (towards inf) or no greater, and is another one."""
    near = float(bound)
    while near < bound if direction > 0 else near > bound:
        near = nextafter(near, direction)
    return int(nextafter(near, direction) if excluded else near)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refused(what: str) -> UnsupportedGenerationError:
    return UnsupportedGenerationError(
        Argument("response_format"), f" or the parameters of a tool hold a schema {what}"
    )


def parts_of(schema: Any, known: Container[int] = ()) -> Iterator[Mapping[str, Any]]:
    """Every mapping that may be a schema; those of known ids, and what is in them, left out."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if id(part) in known:
                continue
            yield part
            for key, value in part.items():
                if key in OF_SCHEMAS and isinstance(value, Mapping):
                    waiting += value.values()  # whose names may be those of keywords
                elif key not in _DATA:
                    waiting.append(value)
        elif isinstance(part, list | tuple):
            waiting += part


def _check_numbers(parts: Iterable[Mapping[str, Any]]) -> None:
    """Refuse numbers for which the engine, which counts in doubles, takes others."""
    for part in parts:
        values = [value for value in _data_of(part) if _is_large(value)]
        bounds = [bound for key in _BOUNDS if _is_large(bound := part.get(key))]
        # Values are written with as few digits as tell the double from others.
        rounded = [value for value in values if Decimal(repr(_double(value))) != value]
        rounded += [bound for bound in bounds if abs(bound) > _FARTHEST or _double(bound) != bound]
        if rounded:
            raise _refused(
                f"with the number {str(rounded[0])[:40]}, instead of which constrained decoding "
                "would take another one. Leave it out and check the answer for it."
            )


def _has_older_items(part: Mapping[str, Any]) -> bool:
    """Whether a list's beginning is as drafts before 2020 have it, which the engine prefers."""
    return "additionalItems" in part or isinstance(part.get("items"), list | tuple)


def _needs_names(part: Mapping[str, Any]) -> bool:
    """Whether an object needs two names or more that the schema does not give."""
    least = part.get("minProperties")
    return _is_number(least) and least - len({*_texts(part.get("required"))}) > 1


def _is_large(value: object) -> TypeGuard[int | float]:
    return _is_number(value) and _WHOLE < abs(value) < inf


def _double(number: float) -> float:
    return float(number) if abs(number) < sys.float_info.max else inf


def _check_texts(texts: Iterable[str]) -> None:
    if sum(len(text) for text in texts if len(text) > _LONG) > _MOST_IN_LONG:
        raise UnsupportedGenerationError(
            Argument("response_format"),
            f" or the parameters of a tool hold texts of more than {_MOST_IN_LONG} characters that "
            "an answer may have to repeat. Shorten them.",
        )


def _data_of(part: Mapping[str, Any]) -> Iterator[Any]:
    """The values that a schema allows, and all in them."""
    waiting = [part[key] for key in ("const", "enum") if key in part]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value


def _texts(value: Any) -> list[str]:
    """The names of a mapping, or the strings of a list."""
    if not isinstance(value, Mapping | list | tuple):
        return []
    return [item for item in value if isinstance(item, str)]


def _patterns_at_once(schema: Mapping[str, Any]) -> int:
    """The most patterns that one string may have to match, or more."""
    counted: dict[str, int] = {}

    def most(parts: Iterable[Any]) -> int:
        return max(map(count, parts), default=0)

    def count(part: Any) -> int:
        if not isinstance(part, Mapping):
            return 0
        total = sum(isinstance(part.get(key), str) for key in ("pattern", "format"))
        total += part.get("format") == "email"  # which gets a pattern besides
        target = part.get("$ref")
        if isinstance(target, str):
            if target not in counted:
                counted[target] = 0  # one that refers to itself adds nothing at the same string
                counted[target] = count(target_of(schema, target))
            total += counted[target]
        inner: list[Any] = []
        for key, value in part.items():
            if key == "allOf" and isinstance(value, list | tuple):
                total += sum(map(count, value))
            elif key in ("anyOf", "oneOf") and isinstance(value, list | tuple):
                total += most(value)
            elif key in ("$defs", "definitions"):
                pass  # counted where they are referred to
            elif key in OF_SCHEMAS and isinstance(value, Mapping):
                inner += value.values()
            elif key in SCHEMAS:
                inner += value if isinstance(value, list | tuple) else [value]
        return total + most(inner)

    return count(schema)


def _levels_of_targets(schema: Mapping[str, Any], targets: Iterable[str]) -> int:
    """Levels below all references together; of too many, as many as tell."""
    levels, known = 0, dict[int, int]()
    for target in targets:
        part = target_of(schema, target)
        if id(part) not in known:  # many references may lead to one large part
            known[id(part)] = levels_of(part)
        levels += known[id(part)]
        if levels > _MOST_LEVELS:
            break
    return levels


def _leads_to_schema(target: str) -> bool:
    """Whether a reference passes keys only that hold schemas, so that these have been looked at."""
    if len(target) > _LONGEST_REFERENCE:
        return False
    start, *steps = target.split("/")
    if start != "#":
        return False
    while steps:
        key = steps.pop(0)
        if key in OF_SCHEMAS and steps:
            steps.pop(0)  # a name
        elif key not in SCHEMAS:
            return False
        elif steps and _is_index(steps[0]):
            steps.pop(0)
    return True


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 10


def target_of(schema: Any, target: str) -> Any:
    """What a reference leads to; None where nothing is, which the engine says."""
    for step in target.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list | tuple) and _is_index(name) and int(name) < len(schema):
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
