"""What constrained decoding writes holds under the schema as its author wrote it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import date, timedelta
from functools import cache
from typing import Any

import pytest
import torch

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.generation.constrained import Constrained, Constraint
from rag_middle.tools.definitions import check_tools, parameters_of
from rag_middle.tools.grammars import answer_grammar
from tests.tokenizers import byte_level_bpe

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")


@cache
def _tokenizer() -> Any:
    return byte_level_bpe()


def _constraint(form: dict[str, Any]) -> Constraint:
    grammar = answer_grammar(form)
    assert grammar is not None
    return Constraint(_tokenizer(), len(_tokenizer()), [_tokenizer().eos_token_id], grammar)


def _form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _written(schema: Any, *values: Any) -> list[Any]:
    """Which of the values may be written."""
    constraint, end = _constraint(_form(schema)), _tokenizer().eos_token_id
    kept = []
    for value in values:
        texts = constraint.begin(1)
        for token in _tokenizer().encode(json.dumps(value), add_special_tokens=False):
            mask = texts.allowed()[0]
            if mask is None or not mask[token]:
                break
            texts.read([[token]])
        else:
            mask = texts.allowed()[0]
            kept += [value] if mask is None or mask[end] else []
    return kept


TEXTS = ("a", '"', "\\", 'a"', '"a', "\\a", "aa", "\n", "\t", "\x08", "\x01", "\x1f", "/", " ")


@pytest.mark.parametrize(
    "pattern",
    [
        '^[^"]$',
        '^[^"\\\\]+$',
        '^[^/\\\\:*?"<>|]+$',
        '^[^\\n"]a$',
        '[^"]a',
        "^[\\x00-\\x1f]$",
        "^[\\u0000-!]$",
        '^[^\\]"]$',
        '^[^-"]+$',
        '^(?:a|[^"])$',
        '^[^\\x00-\\x1f"]+$',
        "^[\\s\\S]$",
        '^[a-z!-#" ]+$',
    ],
)
def test_characters_that_a_pattern_leaves_out_are_not_written(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    valid = [text for text in TEXTS if jsonschema.Draft202012Validator(schema).is_valid(text)]
    assert _written(schema, *TEXTS) == valid
    named = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    objects = [{text: 1} for text in TEXTS]
    assert _written(named, *objects) == [{text: 1} for text in valid]


def test_control_characters_by_name_let_no_quotation_marks_pass() -> None:
    assert _written({"type": "string", "pattern": r"^\p{Cc}$"}, *TEXTS) == [
        *("\n", "\t", "\x08", "\x01", "\x1f")
    ]
    assert _written({"type": "string", "pattern": r"^\P{Po}$"}, "a", '"', "\\") == ["a"]


@pytest.mark.parametrize(
    "pattern",
    [
        *("[[a]]", "[[:alpha:]]", "[a-z&&[^b]]", "[a-z--b]", "[~~]", "[]a]", "[^]a]"),
        *("a++a", "a{2}+a", r"\x{41}", r"a\z", "(?x)a b", "(?U)a+", "(?i-u:a)"),
    ],
)
def test_patterns_that_engines_read_differently_are_refused(pattern: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(UnsupportedGenerationError, match="engines read differently"):
            answer_grammar(_form(schema))
    answer_grammar({"type": "regex", "regex": pattern})


@pytest.mark.parametrize("pattern", [r"^\++$", r"^[a++]$", r"^[\[a]$", "(?i)^a", "^(?P<n>a)$"])
def test_patterns_that_all_read_alike_are_kept(pattern: str) -> None:
    assert _written({"type": "string", "pattern": pattern}, "a", "+", "b") in (
        *(["a"], ["+"], ["a", "+"]),
    )


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, (0, 0.25, 0.5, 0.6)),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, (0, 0.25, 0.5)),
        ({"exclusiveMinimum": 2.0, "maximum": 2.5}, (2, 2.1, 2.5, 3)),
        ({"minimum": -6.92, "exclusiveMaximum": -6}, (-7, -6.92, -6.5, -6)),
        ({"exclusiveMinimum": -0.5, "exclusiveMaximum": 0}, (-0.5, -0.1, 0)),
        ({"exclusiveMinimum": 2_000_000, "maximum": 2_000_000.5}, (2_000_000, 2_000_000.25)),
        ({"exclusiveMinimum": 0, "maximum": 5}, (0, 0.5, 5)),
    ],
)
def test_excluded_bounds_are_not_written(bounds: Any, values: tuple[float, ...]) -> None:
    schema = {"type": "number", **bounds}
    valid = [value for value in values if jsonschema.Draft202012Validator(schema).is_valid(value)]
    assert valid
    assert _written(schema, *values) == valid
    halves = [{key: bound} for key, bound in bounds.items()]
    assert _written({"type": "number", "allOf": halves}, *values) == valid


@pytest.mark.parametrize("bound", [float("inf"), float("-inf"), 1e300])
def test_bounds_beyond_all_numbers_raise_nothing_else(bound: float) -> None:
    schema = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": bound}
    with suppress(UnsupportedGenerationError):
        assert _written(schema, 0) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": '^[^"]$'},
        {"patternProperties": {'^[^"]$': {}}},
        {"items": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}},
    ],
)
def test_schemas_within_grammars_are_refused_where_they_would_be_changed(schema: Any) -> None:
    form = {"type": "grammar", "grammar": f"start: %json {json.dumps(schema)}"}
    with pytest.raises(UnsupportedGenerationError, match="Ask for that schema as json_schema"):
        answer_grammar(form)


def test_dates_are_those_of_the_calendar() -> None:
    days = [
        f"{year:04}-{month:02}-{day:02}"
        for year in (0, 1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999)
        for month in (0, 1, 2, 4, 12, 13)
        for day in (0, 1, 28, 29, 30, 31, 32)
    ]
    real = []
    for day in days:
        with suppress(ValueError):
            real.append(date.fromisoformat(day).isoformat())
    assert _written({"type": "string", "format": "date"}, *days) == real
    moments = [f"{day}T10:30:00Z" for day in days]
    written = _written({"type": "string", "format": "date-time"}, *moments)
    assert written == [f"{day}T10:30:00Z" for day in real]


TIMES = ("10:30:59Z", "10:30:59.125+01:30", "10:30:60Z", "23:59:60Z", "24:00:00Z", "10:30:59")


@pytest.mark.parametrize(
    ("schema", "values", "kept"),
    [
        ({"format": "time"}, TIMES, 2),
        ({"format": "date-time"}, [f"2024-05-01T{time}" for time in TIMES], 2),
        ({"format": "time", "pattern": "^10"}, ["10:30:59Z", "11:30:59Z", "10:30:60Z"], 1),
        (
            {"format": "time", "pattern": "^10", "allOf": [{"pattern": "Z$"}]},
            ["10:30:59Z", "10:30:59+00:00", "11:30:59Z", "10:30:60Z"],
            1,
        ),
        ({"format": "time", "enum": TIMES}, TIMES, 2),
        ({"format": "email"}, ["a@b.de", "a" * 64 + "@b.de", "a" * 65 + "@b.de"], 2),
        ({"format": "email", "pattern": "de$"}, ["a@b.de", "a@b.fr", "a" * 65 + "@b.de"], 1),
    ],
)
def test_formats_are_kept_with_other_patterns_beside_them(
    schema: dict[str, Any], values: Any, kept: int
) -> None:
    assert _written({"type": "string", **schema}, *values) == [*values[:kept]]


def test_durations_are_as_long_as_readers_read() -> None:
    pydantic = pytest.importorskip("pydantic")
    longest = "P99999Y999999M9999999DT99999H9999999M999999999S"
    pydantic.TypeAdapter(timedelta).validate_json(f'"{longest}"')
    texts = ["P1W", "P99999999W", "PT1H2M", "P1MT1S", longest]
    longer = [longest.replace(unit, "9" + unit) for unit in "YDHS"]
    schema = {"type": "string", "format": "duration"}
    assert _written(schema, *texts, "P999999999W", *longer, "P", "PT1H2S") == texts


def test_lists_that_may_repeat_items_are_written() -> None:
    lists: list[Any] = [[1, 1], [1, "a"]]
    assert _written({"items": {"type": "integer"}, "uniqueItems": False}, *lists) == lists[:1]


def test_a_property_written_twice_counts_once() -> None:
    for schema in (
        {"type": "object", "minProperties": 2},
        {"type": "object", "minProperties": 3, "required": ["a"]},
    ):
        with pytest.raises(UnsupportedGenerationError, match="minProperties"):
            answer_grammar(_form(schema))
    one_free = {"type": "object", "minProperties": 2, "required": ["a"]}
    assert _written(one_free, {"a": 1}, {"a": 1, "b": 1}) == [{"a": 1, "b": 1}]


INTEGER = {"type": "integer"}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    named = {"properties": properties, "required": list(required)}
    return {"type": "object", **named} if required else {"type": "object", "properties": properties}


CAT = _object("kind", kind={"const": "cat"}, lives=INTEGER)
DOG = _object("kind", kind={"enum": ["dog", "wolf"]}, legs=INTEGER)


@pytest.mark.parametrize(
    "choices",
    [
        [_object(a=INTEGER), _object("b", a=INTEGER, b=INTEGER)],
        [_object(a=_object(b=INTEGER)), _object("a", a=_object("c", c=INTEGER))],
        [{"$ref": "#/$defs/a"}, _object("b", b=INTEGER)],
        [{"anyOf": [_object(a=INTEGER), INTEGER]}, _object("b", b=INTEGER)],
        [
            {"type": "array", "minItems": 1, "items": _object(a=INTEGER)},
            {"type": "array", "minItems": 1, "items": _object("b", b=INTEGER)},
        ],
    ],
)
def test_alternatives_that_overlap_where_they_are_open_are_refused(choices: Any) -> None:
    schema = {"oneOf": choices, "$defs": {"a": _object(a=INTEGER)}}
    with pytest.raises(UnsupportedGenerationError, match="oneOf"):
        _constraint(_form(schema))


def test_alternatives_that_exclude_each_other_stay_closed() -> None:
    tagged = {
        "oneOf": [CAT, DOG, INTEGER],
    }
    values = ({"kind": "cat"}, {"kind": "cat", "x": 1}, {"kind": "wolf", "legs": 4}, 3, {})
    assert _written(tagged, *values) == [{"kind": "cat"}, {"kind": "wolf", "legs": 4}, 3]
    named = {"oneOf": [_object("a", a=INTEGER), _object("b", b=INTEGER)]}
    assert _written(named, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}) == [{"a": 1}, {"b": 1}]


def test_what_costs_too_much_to_compare_is_left_open() -> None:
    shared = {"anyOf": [_object(f"k{i}", **{f"k{i}": INTEGER}) for i in range(700)]}
    both = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    bounds = {"exclusiveMinimum": 0, "maximum": 0.5}
    began = time.process_time()
    answer_grammar(_form({"anyOf": [both] * 900, "$defs": {"a": shared}}))
    answer_grammar(_form({"anyOf": [bounds] * 4000}))
    for pattern in ("[" * 19_000, "[\\" * 9_000, "\\p{" * 6_000, '[^"]' * 4_000):
        with suppress(UnsupportedGenerationError):
            answer_grammar(_form({"pattern": pattern}))
    assert time.process_time() - began < 3  # 0.5


def test_characters_that_python_warns_of() -> None:
    assert _written({"type": "string", "pattern": '^[^a||"]$'}, *TEXTS[:3]) == ["\\"]


def test_arguments_of_tools_are_objects() -> None:
    def tool(parameters: Any) -> Any:
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    either = {"type": ["object", "null"], "properties": {"a": INTEGER}}
    check_tools([tool(either)])
    assert parameters_of(tool(either))["type"] == "object"
    for parameters in ({"type": "string"}, {"type": ["array", "null"]}):
        with pytest.raises(UnsupportedGenerationError, match="schema of an object"):
            check_tools([tool(parameters)])


def test_a_step_of_an_ambiguous_grammar_ends_soon() -> None:
    count = 200
    rules = "\n".join(f"s{i}: s s{(i * 7 + 1) % count} | /[a-z ]/" for i in range(count))
    choices = " | ".join(f"s{i}" for i in range(count))
    form = {"type": "grammar", "grammar": f"start: s\ns: {choices}\n{rules}"}
    processor = Constrained(_constraint(form), 3, 1)
    began = time.process_time()
    with pytest.raises(UnsupportedGenerationError, match="Too many items"):
        processor(torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, len(_tokenizer())))
    assert time.process_time() - began < 5  # a minute for three rows before


@pytest.mark.parametrize(
    ("schema", "written", "others"),
    [
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
            ['{"a": 1, "b": "x"}', '{"": "x", "ab": "y"}'],
            ['{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}'],
        ),
        (
            {
                "properties": {"/]^-&~": {"type": "null"}, "/": {}, "": {}, "\u00e9b": {}},
                "additionalProperties": {"type": "string"},
            },
            ['{"/]^-&~": null}', '{"/": 1}', '{"": 1}', '{"/]": "x"}', '{"\u00e9": "x"}'],
            ['{"/]^-&~": "x"}', '{"\\/]^-&~": "x"}', '{"\\/": "x"}', '{"/]": 1}'],
        ),
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
            ['{"a": 1}', '{"a": 1, "b": {"c": []}}', '{"b": null}'],
            ['{"\\u0061": "x"}'],
        ),
        (
            {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {}},
            ['{"a": 1}', "{}"],
            ['{"\\u0061": "x"}', '{"b": 1}'],
        ),
        (
            {"patternProperties": {"^a": {"type": "integer"}}},
            ['{"ab": 1}'],
            ['{"\\u0061": "x"}', '{"b": 1}'],
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "integer"}}},
                    {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
                ]
            },
            ['{"a": 1, "b": 2}', '{"b": 2, "c": 3}'],
            ['{"a": 1, "b": 2, "\\u0062": "x"}', '{"b": 2, "\\u0061": "x"}'],
        ),
    ],
)
def test_a_name_in_escapes_is_no_other_name(
    schema: dict[str, Any], written: list[str], others: list[str]
) -> None:
    schema = {"type": "object", **schema}
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(json.loads(text)) for text in written)
    constraint, kept = _constraint(_form(schema)), []
    for text in (*written, *others):
        texts = constraint.begin(1)
        for token in _tokenizer().encode(text, add_special_tokens=False):
            mask = texts.allowed()[0]
            if mask is None or not mask[token]:
                break
            texts.read([[token]])
        else:
            kept.append(text)
    assert kept == written


@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"patternProperties": {"a": {}}}])
def test_control_characters_in_names_beside_others_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedGenerationError, match="control character in its name"):
        _constraint(_form({"type": "object", "properties": {"a\n": {}}, **more}))


def test_patterns_are_not_closed_where_alternatives_exclude_each_other() -> None:
    """What is written for one of them would hold under both."""
    patterns = {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}
    other = {"type": "object", "properties": {"b": {}}, "required": ["b"]}
    with pytest.raises(UnsupportedGenerationError, match="replace oneOf by anyOf"):
        _constraint(_form({"oneOf": [patterns, other]}))
    closed = {**patterns, "additionalProperties": False}
    assert _written({"oneOf": [closed, other]}, {"b": 1}, {"a": 1}) == [{"b": 1}, {"a": 1}]


@pytest.mark.parametrize("names", [["x" * 81], [f"{i:080}" for i in range(300)]])
def test_many_or_long_names_beside_others_are_refused_at_once(names: list[str]) -> None:
    properties = {name: {"type": "null"} for name in names}
    schema = {"type": "object", "properties": properties}
    _constraint(_form({**schema, "additionalProperties": True}))
    with pytest.raises(UnsupportedGenerationError, match="Set additionalProperties to false"):
        _constraint(_form({**schema, "additionalProperties": {"type": "string"}}))
