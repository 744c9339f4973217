"""What constrained decoding is not asked to build: it would take the server with it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.constrained import Constraint
from rag_middle.tools.grammars import answer_grammar
from tests.tokenizers import byte_level_bpe

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


def _chain_of_names(links: int, name: str) -> dict[str, Any]:
    """As `_chain`, by a property whose name is a keyword."""
    definitions: dict[str, Any] = {
        f"r{index}": {"properties": {name: {"$ref": f"#/$defs/r{index + 1}"}}}
        for index in range(links)
    }
    return {"$ref": "#/$defs/r0", "$defs": {**definitions, f"r{links}": LAST}}


def _patterns(count: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f"a{{{n},}}.*b{{{n + 3}}}"} for n in range(count)]


def _properties(count: int) -> dict[str, Any]:
    return {"properties": {f"p{index}": LAST for index in range(count)}}


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
        (_chain_of_names(2000, "default"), "too many references"),
        (_chain_of_names(2000, "enum"), "too many references"),
        ({"properties": {"const": {"multipleOf": 10_000_019}}}, "count to more"),
        ({"properties": {"const": {"properties": {"examples": _referring("#/x")}}}}, "reference"),
        ({"allOf": _patterns(6)}, "more than 5 patterns"),
        ({"pattern": "a", "allOf": [{"anyOf": _patterns(2)}, *_patterns(4)]}, "more than 5"),
        (
            {"allOf": [{"properties": {"a": part}} for part in _patterns(6)]},
            "more than 5 patterns",
        ),
        (
            {"$defs": {"A": {"allOf": _patterns(3)}}, "allOf": [{"$ref": "#/$defs/A"}] * 2},
            "more than 5 patterns",
        ),
        (_properties(1001), "too many parts"),
        ({"enum": [{"a": number} for number in range(5000)]}, "too many parts"),
        (
            {"patternProperties": {f"^x{n}": LAST for n in range(101)}},
            "too many parts",
        ),
        ({"const": "a" * 20_001}, "texts of more than"),
        ({"enum": [[{"a" * 20_001: 1}]]}, "texts of more than"),
        ({"properties": {"a" * 20_001: LAST}}, "texts of more than"),
        ({"required": ["a" * 20_001]}, "texts of more than"),
        ({"pattern": "a" * 20_001}, "texts of more than"),
        ({"minimum": 2**63}, "the number 9223372036854775808"),
        ({"maximum": -1e19}, r"the number -1e\+19"),
        ({"maximum": -(2**63), "minimum": -(2**64)}, "the number -9223372036854775808"),
        ({"const": 2**53 + 1}, "the number 9007199254740993"),
        ({"enum": [[{"a": 10**400}]]}, "the number 1000"),
        ({"prefixItems": [LAST], "additionalItems": False}, "prefixItems beside a list of items"),
        ({"$defs": {"A": {"prefixItems": [LAST], "items": [LAST]}}}, "prefixItems beside a list"),
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
        {"properties": {"properties": {"default": {"multipleOf": 10**9}}}},
        {"properties": {f"p{n}": {"anyOf": [part, {}]} for n, part in enumerate(_patterns(20))}},
        {"allOf": [{"anyOf": _patterns(20)}, *_patterns(4)]},
        {"required": [f"p{index}" for index in range(3000)], **_properties(3000)},
        {"enum": [f"value {index}" for index in range(10_000)]},
        {"properties": {f"a{index}": _properties(100) for index in range(30)}},
        {"const": 10**30},
        {"items": LAST, "additionalItems": False},
        {"prefixItems": [LAST], "items": False},
        {"properties": {"prefixItems": {}, "additionalItems": {}}},
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
        ('start: /a\n"/ | %json {"multipleOf": 10000019}', "count to more"),
        ('start: "a" # /\n  | %json {"multipleOf": 10000019} # /', "count to more"),
        ('start: <"> | %json {"multipleOf": 10000019} "', "count to more"),
        ('start: %json {"minimum": -9223372036854775808}', "the number -9223372036854775808"),
        ('start: p::0\np::_: "" | p::incr(_) p::incr(_)', "have parameters"),
        ("start: A\nA: " + " & ".join(["/a*/"] * 6), "with 5 of & and ~"),
        ("start: A\nA: ~(~/a/ | ~/b/ | ~/c/ | ~/d/)", "with 5 of & and ~"),
        ("start: /" + "a" * 20_001 + "/", "texts of more than"),
        ('start: "' + "a" * 20_001 + '"', "texts of more than"),
        ("start: %json {", "no JSON"),
        ('start: %json {"a": I}', "no JSON"),
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
        'start: "a::b" | /a::b/ // ::',
        "start: " + '"a"~3 ' * 10 + "/a/ & /b/",
        "# " + "a" * 30_000 + "\nstart: /" + "|".join(["word"] * 5000) + "/",
    ],
)
def test_texts_and_expressions_in_grammars_are_not_counted(grammar: str) -> None:
    assert answer_grammar({"type": "grammar", "grammar": grammar}) == grammar


@pytest.mark.parametrize(
    ("repeated", "accepted"),
    [
        ('"\\', True),
        ("/\\", True),
        ("/\n\\", True),
        ('/"\\', True),
        ("%json {", False),
        ('r: %json {"a":I\n', False),
        ('%json "\\', False),
    ],
)
def test_grammars_that_do_not_end_are_read_once(repeated: str, accepted: bool) -> None:
    """These would take hours, where each sign is a beginning from which all the rest is read."""
    grammar = 'start: "a"\n' + repeated * (2_000_000 // len(repeated))
    with nullcontext() if accepted else pytest.raises(UnsupportedGenerationError):
        answer_grammar({"type": "grammar", "grammar": grammar})


def test_expressions_with_too_much_text_are_refused() -> None:
    words = {"type": "regex", "regex": "|".join(["word"] * 5000)}
    assert answer_grammar(words) is not None
    with pytest.raises(UnsupportedGenerationError, match="texts of more than"):
        answer_grammar({"type": "regex", "regex": "a" * 20_001})


@pytest.mark.parametrize(
    ("bounds", "written"),
    [
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, (-(2**63) + 1024, 2**63 - 1024)),
        ({"minimum": -1e300, "maximum": 10**400}, (-(2**63) + 1024, 2**63 - 1024)),
        ({"minimum": 2**53 + 1, "maximum": 2**54 + 6}, (2**53 + 2, 2**54 + 4)),
        ({"exclusiveMinimum": 2**53, "exclusiveMaximum": 2**54}, (2**53 + 2, 2**54 - 2)),
        ({"minimum": 0.5, "maximum": 2**53 - 1}, (0.5, 2**53 - 1)),
        ({"minimum": True}, (True,)),
    ],
)
def test_bounds_are_those_that_the_engine_keeps_to(bounds: Any, written: Any) -> None:
    grammar = answer_grammar(_form({"properties": {"a": {"type": "integer", **bounds}}}))
    assert grammar is not None
    schema = json.loads(grammar.removeprefix("start: %json "))
    assert tuple(schema["properties"]["a"][key] for key in bounds) == written


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63) + 4096},
        {"type": "number", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
    ],
)
def test_integers_beyond_doubles_are_within_their_bounds(schema: Any) -> None:
    pytest.importorskip("llguidance")
    tokenizer = byte_level_bpe()
    grammar = answer_grammar(_form(schema))
    assert grammar is not None
    ends = [tokenizer.eos_token_id]
    constraint = Constraint(tokenizer, len(tokenizer), ends, grammar)
    for chosen in (0, -1):  # the first or the last token that is possible
        texts, ids = constraint.begin(1), []
        while (mask := texts.allowed()[0]) is not None:
            allowed = [i for i, bias in enumerate(mask) if bias]
            ids.append(ends[0] if ends[0] in allowed else allowed[chosen])
            texts.read([ids[-1:]])
        value = json.loads(tokenizer.decode(ids, skip_special_tokens=True))
        assert schema["minimum"] <= value <= schema["maximum"]
