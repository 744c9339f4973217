"""Properties that a schema does not name, kept apart from those that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.limits import parts_of
from rag_middle.wording import Argument

_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
#: Characters of names beside a schema of others: the engine refuses most that have more.
_NAMED, _LONGEST_NAME = 20_000, 80


def check_open(schema: Any) -> None:
    """Refuse what `with_names_by_pattern` would write wrongly, or at great length.

    Raises:
        UnsupportedGenerationError: names beside a schema of others are too long, or others may
            stand beside patterns of names where there is a ``oneOf``.
    """
    parts = list(parts_of(schema))
    named = [
        name
        for part in parts
        if not isinstance(part.get("additionalProperties", True), bool)
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


def with_names_by_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a pattern for the properties that it does not name.

    Elsewhere the engine may escape any character of such names, and `"\\u0061"` is the name `a`,
    of which the schema may say something else. What a pattern matches it spells in one way, control
    characters aside.

    Raises:
        UnsupportedGenerationError: a name has control characters.
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
