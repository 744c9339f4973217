"""Alternatives of which exactly one may hold, in schemas that get closed.

Constrained decoding writes no property that a schema does not name. That makes a schema narrower,
and two of a ``oneOf`` may exclude each other only because of it: what is written for the one holds
under the other as its author wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rag_middle.tools.limits import parts_of, target_of

_CHOICES = ("anyOf", "oneOf")
_MOST_PAIRS = 50_000  # of a schema: a tenth of a second
_MOST_STEPS = 500_000  # of a schema, to find alternatives and to compare them: half a second


class _TooManyStepsError(Exception):
    """Comparing takes too long."""


class _Steps:
    """Counts what comparing takes."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def take(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooManyStepsError


def leave_open(schema: Any) -> None:
    """Have schemas of a ``oneOf`` say that they are open, unless others exclude them in any case.

    The engine then refuses those that overlap. Where there are too many to compare, all are open.
    """
    opened: set[int] = set()
    try:
        _compare(schema, opened, _Steps())
    except _TooManyStepsError:
        _open(schema, schema, opened)


def _compare(schema: Any, opened: set[int], steps: _Steps) -> None:
    compared: list[list[list[dict[str, Any]]]] = []
    pairs = 0
    for part in parts_of(schema):
        if isinstance(choices := part.get("oneOf"), list):
            branches = [list(_leaves(choice, schema, set(), steps)) for choice in choices]
            branches = [branch for branch in branches if branch]
            pairs += sum(map(len, branches)) ** 2
            if pairs > _MOST_PAIRS:
                raise _TooManyStepsError
            compared.append(branches)
    before = -1
    while len(opened) > before:  # what is open excludes less
        before = len(opened)
        for branches in compared:
            for index, branch in enumerate(branches):
                if all(id(leaf) in opened for leaf in branch):
                    continue
                others = [leaf for i, other in enumerate(branches) if i != index for leaf in other]
                for leaf in branch:
                    excluded = id(leaf) in opened or all(_excludes(leaf, o, steps) for o in others)
                    if not excluded:
                        _open(leaf, schema, opened)


def _leaves(
    part: Any, root: dict[str, Any], seen: set[int], steps: _Steps
) -> Iterator[dict[str, Any]]:
    """The schemas of which one holds where a schema does, references followed."""
    steps.take()
    if not isinstance(part, dict) or id(part) in seen:
        return
    seen.add(id(part))
    lists = [choices for key in _CHOICES if isinstance(choices := part.get(key), list)]
    steps.take(sum(map(len, lists)))
    choices = [choice for choices in lists for choice in choices]
    if isinstance(part.get("$ref"), str):
        choices.append(target_of(root, part["$ref"]))
    if choices and "properties" not in part:
        for choice in choices:
            yield from _leaves(choice, root, seen, steps)
    else:
        yield part


def _excludes(schema: dict[str, Any], other: dict[str, Any], steps: _Steps) -> bool:
    """Whether nothing that is written for the other holds under the schema, left open."""
    steps.take()
    kinds, other_kinds = _kinds(schema, steps), _kinds(other, steps)
    if kinds and other_kinds and not kinds & other_kinds:
        return True
    required, names, other_names = map(
        dict.get, (schema, schema, other), ("required", "properties", "properties")
    )
    if kinds != {"object"} or other_kinds != {"object"} or not isinstance(required, list):
        return False
    if not isinstance(names, dict) or not isinstance(other_names, dict):
        return False
    is_closed = not (other.get("additionalProperties") or "patternProperties" in other)
    for name in required:
        steps.take()
        if isinstance(name, str) and (
            (is_closed and name not in other_names)
            or _differ(names.get(name), other_names.get(name), steps)
        ):
            return True
    return False


def _kinds(schema: dict[str, Any], steps: _Steps) -> set[str]:
    kind = schema.get("type")
    if isinstance(kind, list):
        steps.take(len(kind))
    kinds = {item for item in (kind if isinstance(kind, list) else [kind]) if isinstance(item, str)}
    return kinds | {"number"} if "integer" in kinds else kinds


def _differ(value: Any, other: Any, steps: _Steps) -> bool:
    """Whether both are lists of strings that have none in common."""
    texts, others = _texts(value, steps), _texts(other, steps)
    return bool(texts and others and not texts & others)


def _texts(schema: Any, steps: _Steps) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        steps.take(len(values))
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return set()
    return {*values}


def _open(schema: dict[str, Any], root: dict[str, Any], opened: set[int]) -> None:
    waiting: list[Any] = [schema]
    while waiting:
        reached = waiting.pop()
        parts: list[Any] = [*parts_of(reached, opened)]
        for part in parts:
            opened.add(id(part))
            if isinstance(part.get("properties"), dict):
                part.setdefault("additionalProperties", True)
            if isinstance(part.get("$ref"), str):
                waiting.append(target_of(root, part["$ref"]))
