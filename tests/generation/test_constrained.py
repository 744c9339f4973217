"""Answers of a form: whatever the model would write, and whatever else is asked for."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from transformers import LlamaConfig

from rag_middle import ContextPrompt
from rag_middle.errors import MissingExtraError, UnsupportedGenerationError
from rag_middle.generation import Follower, RagMiddleModel
from rag_middle.tools import grammars
from tests.tiny_models import build, tiny
from tests.tokenizers import metaspace_bpe

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "river": {"enum": ["Loire", "Rhône"]},
        "long": {"type": "boolean"},
        "path": {"type": "string", "format": "path", "maxLength": 3},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}, "maxItems": 2},
    },
    "required": ["river", "long", "tags"],
    "$defs": {
        "Tag": {
            "type": "object",
            "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
        }
    },
}
FORM = {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(3000):
    DEEP = {"type": "array", "items": DEEP}
LONG = {"max_new_tokens": 150}


def check(text: str) -> None:
    read = json.loads(text)
    assert read["river"] in ("Loire", "Rhône")
    assert isinstance(read["long"], bool)
    assert {*read} <= {"river", "long", "path", "tags"}
    assert all({*tag} <= {"n"} for tag in read["tags"])


@pytest.mark.parametrize("method", ["none", "pine", "attention_buckets", "ape"])
def test_answers_parse_under_any_method(
    model: RagMiddleModel, prompt: ContextPrompt, method: str
) -> None:
    answer = model.generate(prompt, method=method, response_format=FORM, **LONG)
    check(answer.text)
    assert answer.finish_reason == "stop"


def test_rows_of_a_batch_go_their_own_ways(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    drawn: Any = {"temperature": 1.5, "seed": [1, 2, 3, 4], "top_p": 0.9}
    answers = model.batch(prompts, response_format=FORM, **LONG, **drawn)
    for answer in answers:
        check(answer.text)
    assert len({answer.text for answer in answers}) > 1
    alone = model.generate(
        prompts[2], response_format=FORM, temperature=1.5, seed=3, top_p=0.9, **LONG
    )
    assert alone.text == answers[2].text


def test_streams_stop_strings_and_followers(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    # What ends before the form does would be of no form: stop strings inside it do not end it.
    whole = model.generate(prompt, response_format=FORM, stop=["river", "{"], **LONG)
    check(whole.text)
    with model.stream(prompt, response_format=FORM, **LONG) as stream:
        assert "".join(stream) == stream.result.text == whole.text
    heard: list[str] = []
    follower = Follower(on_text=lambda text, _: heard.append(text), alternatives=2)
    model.batch([prompt], followers=[follower], response_format=FORM, **LONG)
    assert "".join(heard) == whole.text


def test_who_cancels_ends_no_other_answer_of_its_batch(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    heard: list[str] = []
    leaving = Follower(on_text=lambda text, _: (heard.append(text), leaving.cancel.set()))
    staying = Follower(on_text=lambda *_: None)
    left, stayed = model.batch(
        prompts[:2], followers=[leaving, staying], response_format=FORM, **LONG
    )
    assert left.finish_reason == "cancelled"
    assert "".join(heard) == left.text != ""
    assert stayed.finish_reason == "stop"
    assert stayed.text == model.generate(prompts[1], response_format=FORM, **LONG).text


def test_a_cut_answer_says_so(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    answer = model.generate(prompt, response_format=FORM, max_new_tokens=4)
    assert answer.finish_reason == "length"


def test_an_end_token_that_is_text_cuts_no_answer(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    own = model.tokenizer.eos_token_id
    text = model.tokenizer.encode("4", add_special_tokens=False)
    ends = [own, *text]
    form = {"type": "regex", "regex": "4?5?[34]"}
    for seed in range(6):
        answer = model.generate(
            prompt, response_format=form, eos_token_id=ends, temperature=2.0, seed=seed
        )
        assert answer.text in ("3", "53")
        assert answer.finish_reason == "stop"
    form["regex"] = "345"
    with pytest.raises(UnsupportedGenerationError, match="no token but a token") as failed:
        model.generate(prompt, response_format=form, eos_token_id=ends)
    assert str(failed.value).endswith("Pass other ones as eos_token_id.")


def test_answers_without_an_end_token_are_refused(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    with pytest.raises(UnsupportedGenerationError, match="none that ends answers"):
        model.generate(prompt, response_format=FORM, eos_token_id=[])


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "regex", "regex": "(yes|no)/[0-9]{2}"}, r"(yes|no)/\d\d"),
        ({"type": "regex", "regex": r"(yes|no)\\/\/[0-9]"}, r"(yes|no)\\//\d"),
        ({"type": "grammar", "grammar": 'start: "a" b\nb: "b" | "c"'}, "a[bc]"),
    ],
)
def test_patterns_and_grammars(
    model: RagMiddleModel, prompt: ContextPrompt, form: Any, pattern: str
) -> None:
    import re

    assert re.fullmatch(pattern, model.generate(prompt, response_format=form).text)


def test_an_unknown_format_says_nothing_and_constants_stay(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    phone = {"format": "phone", "type": "string", "maxLength": 2}
    constant = {"a": 1, "format": "phone", "properties": {}}
    schema = {
        "type": "object",
        "properties": {"format": phone, "y": {"const": constant}},
        "required": ["format", "y"],
    }
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    assert json.loads(model.generate(prompt, response_format=form, **LONG).text)["y"] == constant


@pytest.mark.parametrize("name", sorted(grammars._FORMATS))
def test_the_engine_keeps_to_formats_that_are_left_to_it(name: str) -> None:
    matcher = pytest.importorskip("llguidance").LLMatcher
    schema = json.dumps({"type": "string", "format": name})
    assert not matcher.validate_grammar(matcher.grammar_from_json_schema(schema))


def test_properties_beside_alternatives(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    digit = {"properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}
    schema = {"properties": {"a": {"const": 1}}, "required": ["a"], "type": "object"}
    # Free to add properties, the model may never come to an end: what it wrote by then counts.
    for composed in ({"anyOf": [digit]}, {"$ref": "#/$defs/B", "$defs": {"B": digit}}):
        form = {"type": "json_schema", "json_schema": {"schema": {**schema, **composed}}}
        text = model.generate(prompt, response_format=form, **LONG).text
        assert text.startswith('{"a": 1, "b": ')


def test_long_lists_and_texts_are_kept_to(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    values = [f"value {index * 7919 % 10007}" for index in range(3000)]
    text = {"type": "string", "minLength": 5, "maxLength": 20_000}
    wanted = {"type": "object", "properties": {"a": {"enum": values}, "b": text}}
    schema = {**wanted, "required": ["a", "b"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    assert model.generate(prompt, response_format=form, max_new_tokens=40).text.startswith('{"a": ')


#: Schemas for which the engine would make as many states as there are remainders.
MULTIPLES: list[dict[str, Any]] = [
    {"type": "integer", "multipleOf": 1_000_003},
    {"type": "integer", "multipleOf": 10**400},
    {"type": "number", "multipleOf": 12.34567},
    {"allOf": [{"type": "integer", "multipleOf": n} for n in (83, 89, 97)]},
    {
        "type": "object",
        "properties": {f"a{n}": {"type": "integer", "multipleOf": n} for n in range(9000, 9003)},
    },
]


@pytest.mark.parametrize("value", [5, 0.01, 99.5, 1000])
def test_small_multiples_are_kept_to(
    model: RagMiddleModel, prompt: ContextPrompt, value: float
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "multipleOf": value}}}
    form = {"type": "json_schema", "json_schema": {"schema": {**schema, "required": ["n"]}}}
    assert model.generate(prompt, response_format=form, max_new_tokens=9).text.startswith('{"n": ')


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"response_format": FORM, "num_beams": 2}, "exclude each other"),
        ({"response_format": {"type": "xml"}}, "must be a mapping whose type"),
        ({"response_format": {"type": "json_schema"}}, "needs 'json_schema'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "cannot keep to",
        ),
        ({"response_format": {"type": "grammar", "grammar": "start: ("}}, "cannot keep to"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
            "response_format.*(plain JSON|too deeply)",
        ),
        (
            {"response_format": {"type": "regex", "regex": "(.{1,50} ?){50}"}},
            "too many expressions",
        ),
        ({"response_format": {"type": "regex", "regex": "\ud800"}}, "response_format.* no text"),
        *(
            (
                {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                "count to more than 20000",
            )
            for schema in MULTIPLES
        ),
        ({"tool_choice": "any"}, "needs tools"),
        ({"tools": [{"name": "search"}]}, "must hold"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(
    model: RagMiddleModel, prompt: ContextPrompt, options: Any, reason: str
) -> None:
    with pytest.raises(UnsupportedGenerationError, match=reason):
        model.generate(prompt, **options)


@pytest.mark.parametrize("scheme", ["legacy", "always", "never"])
def test_spaces_that_a_form_begins_with_are_written(scheme: str) -> None:
    tokenizer = metaspace_bpe(scheme=scheme)
    config = tiny(LlamaConfig, vocab_size=len(tokenizer))
    model = RagMiddleModel(build("spaces of a form", config, "sdpa"), tokenizer)
    for pattern in (" {3}x", "[ a]{4}", " the", "\u2581 ", "x y"):
        form = {"type": "regex", "regex": pattern}
        for seed in range(3):
            options: Any = {"response_format": form, "temperature": 1.0, "seed": seed}
            stream = model.stream("Hello", **options)
            assert re.fullmatch(pattern, "".join(stream))
            assert re.fullmatch(pattern, model.generate("Hello", **options).text)


def test_the_engine_is_an_extra(
    model: RagMiddleModel, prompt: ContextPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=r"rag-middle\[structured\]"):
        model.generate(prompt, response_format={"type": "json_object"})
