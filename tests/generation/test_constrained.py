"""Structured output: whatever the model would write, and whatever else is asked for."""

import json
import re
import sys
from typing import Any

import pytest

from rag_middle import ContextPrompt
from rag_middle.errors import MissingExtraError, UnsupportedGenerationError
from rag_middle.generation import Follower, RagMiddleModel
from tests.tiny_models import speaking
from tests.tokenizers import metaspace_bpe

pytestmark = pytest.mark.thorough

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
LONG = {"max_new_tokens": 150}


def check(text: str) -> None:
    read = json.loads(text)
    assert read["river"] in ("Loire", "Rhône")
    assert isinstance(read["long"], bool)
    assert {*read} <= {"river", "long", "path", "tags"}
    assert all({*tag} <= {"n"} for tag in read["tags"])


@pytest.mark.parametrize("method", ["pine", "none", "attention_buckets", "ape"])
@pytest.mark.one_in(2)
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
    follower = Follower(on_text=lambda text, _: heard.append(text))
    model.batch([prompt], followers=[follower], response_format=FORM, **LONG)
    assert "".join(heard) == whole.text


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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"response_format": FORM, "num_beams": 2}, "exclude each other"),
        ({"response_format": {"type": "json_schema"}}, "needs 'json_schema'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "cannot keep to",
        ),
        ({"response_format": {"type": "grammar"}}, "must be a mapping whose type"),
        (
            {"response_format": {"type": "regex", "regex": "(.{1,50} ?){50}"}},
            "too many expressions",
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
@pytest.mark.one_in(3)
def test_spaces_that_a_form_begins_with_are_written(scheme: str) -> None:
    tokenizer = metaspace_bpe(scheme=scheme)
    model = speaking("spaces of a form", tokenizer)
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
