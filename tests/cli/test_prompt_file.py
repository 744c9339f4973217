"""Prompts from files and standard input: text with markers, and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from rag_middle.cli.generate import read_prompt
from rag_middle.cli.options import parse_method_options
from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import MethodConfigError, PromptError

PROMPT = ContextPrompt("Before.\n\n", ["One.", "Two."], "After.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompt.txt"


def test_a_text_with_markers(path: Path) -> None:
    path.write_text(PROMPT.marked, encoding="utf-8")
    assert read_prompt(str(path)) == PROMPT


@pytest.mark.parametrize("name", ["prompt.json", "prompt.txt"])
def test_json_is_known_by_its_name_or_its_first_character(tmp_path: Path, name: str) -> None:
    content = {
        "prefix": "Before.\n\n",
        "documents": ["One.", {"text": "Two.", "title": "Second", "id": "b", "metadata": {"n": 1}}],
        "suffix": "After.",
        "separator": "\n",
    }
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    prompt = read_prompt(str(tmp_path / name))
    second = Document("Two.", title="Second", id="b", metadata={"n": 1})
    assert prompt == ContextPrompt("Before.\n\n", ["One.", second], "After.", "\n")


def test_markers_in_json_are_text_and_a_text_may_begin_like_json(path: Path) -> None:
    path.write_text('{"documents": ["[[rm:doc]]"], "suffix": "[[/rm:doc]]"}')
    prompt = read_prompt(str(path))
    assert (prompt.documents[0].text, prompt.suffix) == ("[[rm:doc]]", "[[/rm:doc]]")
    path.write_text("{Context} [[rm:doc]]One.[[/rm:doc]]")
    assert read_prompt(str(path), "text").prefix == "{Context} "


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"prefix": ', "is no JSON that says one: Expecting.*--prompt-format text"),
        ('{"documents": "One."}', "'documents' is no list"),
        ('{"documents": ["One.", {"title": "x"}]}', "argument: 'text'"),
    ],
)
def test_json_of_another_shape_is_refused(path: Path, content: str, problem: str) -> None:
    path.write_text(content)
    with pytest.raises(PromptError, match=problem):
        read_prompt(str(path))


def test_other_encodings_are_refused(path: Path) -> None:
    path.write_bytes("Rhône".encode("latin-1"))
    with pytest.raises(PromptError, match="in UTF-8"):
        read_prompt(str(path))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("reference_code=true", True),
        ("head-order=sequential", "sequential"),
        ('dense_areas={"3": [true, false]}', {3: [True, False]}),
        ("name=a=b", "a=b"),
    ],
)
def test_method_options_are_json_or_strings(given: str, value: Any) -> None:
    [(name, parsed)] = parse_method_options([given]).items()
    assert "-" not in name
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("given", [["scale"], ["=2"]])
def test_malformed_method_options_are_refused(given: list[str]) -> None:
    with pytest.raises(MethodConfigError, match="--method-option"):
        parse_method_options(given)
