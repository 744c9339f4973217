"""Messages name what Python calls an argument and what the command line does."""

from __future__ import annotations

import pickle

import pytest
import typer

from rag_middle.cli.app import app
from rag_middle.errors import PromptError, UnsupportedGenerationError
from rag_middle.generation import GenerationOptions
from rag_middle.wording import FLAGS, RENAMED_FLAGS, Argument


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        (Argument("top_p"), "top_p"),
        (Argument("num_beams"), "num_beams (--beams)"),
        (Argument("on_overflow", "error"), "on_overflow='error' (--on-overflow error)"),
        (Argument("num_beams", 2), "num_beams=2 (--beams 2)"),
        (Argument("rebuild", True), "rebuild=True (--rebuild)"),
        (Argument("embedder", "a/b", python="Model('a/b')"), "Model('a/b') (--embedder a/b)"),
        (Argument("tool_choice", "auto"), "tool_choice='auto'"),  # no flag
    ],
    ids=str,
)
def test_an_argument_is_followed_by_its_flag(argument: Argument, written: str) -> None:
    assert str(PromptError("Use ", argument, ".")) == f"Use {written}."


def test_flags_that_messages_name_are_there() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name for command in commands.values() for option in command.params for name in option.opts
    }
    named = {f"--{name.replace('_', '-')}" for name in FLAGS} | {*RENAMED_FLAGS.values()}
    assert named <= options


def test_an_error_names_its_parameter() -> None:
    with pytest.raises(UnsupportedGenerationError) as raised:
        GenerationOptions(top_p=3.0)
    assert raised.value.parameter == "top_p"
    assert pickle.loads(pickle.dumps(raised.value)).parameter == "top_p"
    assert PromptError("The prompt is empty.").parameter is None
