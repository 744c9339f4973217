"""What constrained decoding is not asked to build: it would take the server with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.tools.grammars import answer_grammar

LAST = {"type": "integer"}


def _form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = LAST
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def _chain(links: int, key: str) -> dict[str, Any]:
    """Definitions of which each refers to the next one."""
    definitions: dict[str, Any] = {f"r{links}": LAST}
    for index in range(links):
        following: Any = {"$ref": f"#/{key}/r{index + 1}"}
        if index % 2:
            following = {"type": "object", "properties": {"a": following}}
        definitions[f"r{index}"] = following
    return {"$ref": f"#/{key}/r0", key: definitions}


def _referring(target: str) -> dict[str, Any]:
    return {"$ref": target, "components": {"X": {"type": "integer", "multipleOf": 5}}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (_nested(101), "nested too deeply"),
        (_chain(260, "$defs"), "too many references"),
        (_chain(2000, "definitions"), "too many references"),
        (_referring("#/components/X"), "reference to '#/components/X'"),
        (_referring("#/default"), "reference to '#/default'"),
        (_referring("#/properties"), "reference to '#/properties'"),
        (_referring("https://example.org/X"), "reference to 'https"),
        (_referring("#/%24defs/X"), "reference to"),
    ],
)
def test_schemas_that_take_the_engine_too_far_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(UnsupportedGenerationError, match=reason):
        answer_grammar(_form(schema))


@pytest.mark.parametrize(
    "schema",
    [
        _nested(90),
        _chain(100, "$defs"),
        {"$defs": {"A": {"properties": {"next": {"$ref": "#/$defs/A"}}}}, "$ref": "#/$defs/A"},
        {"properties": {"a": {"items": LAST}, "b": {"$ref": "#/properties/a/items"}}},
        {"anyOf": [LAST, {"items": {"$ref": "#"}}, {"items": {"$ref": "#/anyOf/0"}}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": LAST}},
        {"enum": [{"$ref": "#/nowhere", "multipleOf": 10**9}]},
    ],
)  # fmt: skip
def test_other_schemas_are_written(schema: Any) -> None:
    assert answer_grammar(_form(schema)) is not None


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(1000)), "of 1001 rules"),
        ("start: " + "(" * 1000 + '"a"' + ")" * 1000, "of 1001 rules"),
        ('start: %json {"type": "integer", "multipleOf": 1000003}', "count to more"),
        ('start: %json\n{"type": "integer", "mult\\u0069pleOf": 1000003}', "count to more"),
        ('start: a b\na: %json {"multipleOf": 15013}\nb: %json {"multipleOf": 9}', "than 10000"),
        ("start: %json " + json.dumps(_chain(2000, "$defs")), "too many references"),
        ("start: %json " + "[" * 100_000, "nested too deeply"),
        ('start: "' + "a: b\n" * 1100, "grammar of"),  # a text that does not end hides nothing
    ],
)  # fmt: skip
def test_grammars_that_take_the_engine_too_far_are_refused(grammar: str, reason: str) -> None:
    with pytest.raises(UnsupportedGenerationError, match=reason):
        answer_grammar({"type": "grammar", "grammar": grammar})


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "' + "(" * 2000 + '"',
        "start: /" + "a?" * 1500 + "/",
        "start: a // " + "?" * 2000 + '\na: "x"',
        'start: %json {"multipleOf": 5} | %json true',
        "start: %json {",
    ],
)
def test_texts_and_expressions_in_grammars_are_not_counted(grammar: str) -> None:
    assert answer_grammar({"type": "grammar", "grammar": grammar}) == grammar
