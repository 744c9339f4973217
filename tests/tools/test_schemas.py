"""Forms that the engine cannot follow are refused."""

import json
from functools import cache
from typing import Any

import pytest

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.constrained import Constraint
from rag_middle.tools.definitions import check_tools, parameters_of
from rag_middle.tools.grammars import answer_grammar
from tests.tokenizers import byte_level_bpe

INTEGER = {"type": "integer"}
SELF = {"properties": {"next": {"$ref": "#/$defs/A"}}}


@cache
def _tokenizer() -> Any:
    return byte_level_bpe()


def _form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _constraint(form: dict[str, Any]) -> Constraint:
    grammar = answer_grammar(form)
    assert grammar is not None
    return Constraint(_tokenizer(), len(_tokenizer()), [_tokenizer().eos_token_id], grammar)


def _written(schema: Any, *values: Any) -> list[Any]:
    """Which of the values may be written."""
    constraint, kept = _constraint(_form(schema)), []
    for value in values:
        text, ids = constraint.begin(), _tokenizer().encode(json.dumps(value))
        kept += [value] if text.try_consume_tokens(ids) == len(ids) and text.is_accepting() else []
    return kept


def _chain(links: int) -> dict[str, Any]:
    """Definitions of which each refers to the next one."""
    definitions: dict[str, Any] = {f"r{links}": INTEGER}
    for index in range(links):
        following = {"anyOf": [{"$ref": f"#/$defs/r{index + 1}"}]}
        definitions[f"r{index}"] = {"properties": {"a": {"items": following}}}
    return {"$ref": "#/$defs/r0", "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (_chain(300), "too many references"),
        ({"type": "integer", "multipleOf": 1_000_003}, "count to more than 20000"),
        ({"type": "integer", "multipleOf": 10**400}, "count to more than 20000"),
        ({"allOf": [{"type": "integer", "multipleOf": n} for n in (83, 89, 97)]}, "count to more"),
        ({"allOf": [{"multipleOf": 15_013}, {"multipleOf": -9_001}]}, "count to more"),
        ({"allOf": [{"multipleOf": 10**10 + n} for n in range(20_000)]}, "count to more"),
        ({"type": "number", "multipleOf": float("inf")}, "cannot keep to"),
        ({"$ref": "https://example.org/X"}, "cannot keep to"),
        ({"type": "array", "uniqueItems": True}, "cannot keep to"),
        ({"type": "integer", "minimum": -(2**63)}, "cannot keep to"),
    ],
)
def test_schemas_that_the_engine_cannot_follow_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(UnsupportedGenerationError, match=reason):
        _constraint(_form(schema))


@pytest.mark.parametrize(
    "schema",
    [
        _chain(150),
        {"$defs": {"A": SELF}, "$ref": "#/$defs/A"},
        {"anyOf": [INTEGER, {"items": {"$ref": "#"}}, {"items": {"$ref": "#/anyOf/0"}}]},
        {"enum": [f"value {index}" for index in range(10_000)]},
        {"type": "number", "multipleOf": 0.25},
        {"type": "array", "items": INTEGER, "uniqueItems": False},
        {"type": "string", "format": "path"},
        {"type": "integer", "maximum": 2**70},
    ],
)
def test_other_schemas_are_written(schema: Any) -> None:
    _constraint(_form(schema))


def test_properties_without_a_name_are_not_invented() -> None:
    cat = {"properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
    either = {"oneOf": [{"type": "object", **cat}, INTEGER]}
    values: list[Any] = [{"kind": "cat"}, {"kind": "cat", "x": 1}, 3, {}]
    assert _written(either, *values) == [{"kind": "cat"}, 3]


def test_arguments_of_tools_are_objects() -> None:
    def tool(parameters: Any) -> Any:
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    either = {"type": ["object", "null"], "properties": {"a": INTEGER}}
    check_tools([tool(either)])
    assert parameters_of(tool(either))["type"] == "object"
    no_properties = {"type": "object", "properties": [1]}
    for parameters in ({"type": "string"}, {"type": ["array", "null"]}, no_properties):
        with pytest.raises(UnsupportedGenerationError, match="schema of an object"):
            check_tools([tool(parameters)])
