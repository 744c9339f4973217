"""Messages of the library in the words of the command line."""

from __future__ import annotations

import pickle

import pytest

from rag_middle.cli.console import flags_of, in_flags
from rag_middle.cli.generate import generate
from rag_middle.cli.index import index
from rag_middle.errors import MethodConfigError, PromptError, UnsupportedGenerationError
from rag_middle.generation import GenerationOptions, MissingDocumentsWarning
from rag_middle.methods import resolve_method
from rag_middle.wording import Argument

FLAGS = flags_of(generate, rebuild="--rebuild")


def test_flags_are_those_of_the_command() -> None:
    assert FLAGS["max_new_tokens"] == "--max-new-tokens"
    assert FLAGS["model"] == "--model"  # rather than -m
    assert FLAGS["as_json"] == "--json"
    assert FLAGS["num_beams"] == "--beams"
    assert FLAGS["stream"] == "--stream"  # rather than --stream/--no-stream
    assert "path" not in flags_of(index)  # an argument


@pytest.mark.parametrize(
    ("argument", "python", "flag"),
    [
        (Argument("top_p"), "top_p", "--top-p"),
        (Argument("on_overflow", "error"), "on_overflow='error'", "--on-overflow error"),
        (Argument("num_beams", 2), "num_beams=2", "--beams 2"),
        (Argument("rebuild", True), "rebuild=True", "--rebuild"),
        (Argument("model", "a/b", python="Model('a/b')"), "Model('a/b')", "--model a/b"),
        (Argument("chunk_size", 3), "chunk_size=3", "chunk_size=3"),  # no flag of this command
    ],
    ids=str,
)
def test_arguments_become_flags(argument: Argument, python: str, flag: str) -> None:
    for message in (PromptError("Use ", argument, "."), MissingDocumentsWarning(argument)):
        assert python in str(message)
        assert in_flags(message, FLAGS) == str(message).replace(python, flag)


def test_the_rest_of_a_message_stays() -> None:
    message = "top_p must be 'seed=3'; --top-p stays, and so does num_beams=1."
    assert in_flags(message, FLAGS) == in_flags(PromptError(message), FLAGS) == message


def test_options_of_a_method_are_no_flags() -> None:
    with pytest.raises(MethodConfigError) as raised:
        resolve_method("moice", {"routers": "uniform", "top_k": 99})
    assert "top_k" in in_flags(raised.value, FLAGS)
    assert "--top-k" not in in_flags(raised.value, FLAGS)


def test_an_error_names_its_parameter() -> None:
    with pytest.raises(UnsupportedGenerationError) as raised:
        GenerationOptions(top_p=3.0)
    assert raised.value.parameter == "top_p"
    assert pickle.loads(pickle.dumps(raised.value)).parameter == "top_p"
    assert PromptError("The prompt is empty.").parameter is None
