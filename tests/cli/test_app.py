"""The command line as a whole: help, version, start-up, wrong usage."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import rag_middle
from rag_middle.cli.app import app
from rag_middle.methods import METHODS
from tests.cli.conftest import Run


@pytest.mark.parametrize("command", typer.main.get_command(app).commands)  # type: ignore[attr-defined]
def test_every_command_has_help(run: Run, command: str) -> None:
    assert f" {command} " in run("--help").out
    shown = run(command, "--help")
    assert shown.status == 0
    assert ("--json" in shown.out) == (command not in ("chat", "serve"))


def test_every_command_that_runs_a_model_takes_threads() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    without = {
        name
        for name, command in commands.items()
        if not any("--threads" in option.opts for option in command.params)
    }
    assert without == {"methods"}


def test_wrong_usage_is_told_on_standard_error(run: Run) -> None:
    shown = run("methods", "--jsn")
    assert shown.status == 2
    assert shown.out == ""
    assert "--jsn" in shown.err


def test_errors_show_a_traceback_only_with_debug(run: Run) -> None:
    shown = run("methods", "nonsense")
    assert shown.err.startswith("Error: Unknown method 'nonsense'.")
    assert "Traceback" not in shown.err
    with pytest.raises(rag_middle.UnknownNameError):
        run("methods", "nonsense", "--debug")


def test_flags_that_messages_name_are_there() -> None:
    """Messages name what Python calls an argument and what the command line does."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name for command in commands.values() for option in command.params for name in option.opts
    }
    sources = Path(rag_middle.__file__).parent.rglob("*.py")
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    named = set(re.findall(r"[\w\]'}] \((--[a-z-]+)", text))
    assert "--beams" in named
    assert named <= options


# -- rag-middle methods ----------------------------------------------------------------------------


def test_every_method_is_listed_with_what_it_needs(run: Run) -> None:
    shown = " ".join(run("methods").out.replace("│", " ").split())
    for name, kind in METHODS.items():
        assert name in shown
        assert kind.info.paper in shown
        assert " ".join(kind.info.requires.split()[:3]) in shown
        assert " ".join(kind.info.can_hurt_when.split()[:3]) in shown


def test_the_list_as_json(run: Run) -> None:
    listed = run("methods", "--json").json
    assert [each["name"] for each in listed] == list(METHODS.names())
    [pine] = [each for each in listed if each["name"] == "pine"]
    assert pine["paper"] == "arXiv:2407.01100"
    assert pine["options"][0]["type"] == "reversed | no_reassignment | null"


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.one_in(3)
def test_one_method_is_shown_with_its_options(run: Run, name: str) -> None:
    shown = run("methods", name)
    assert shown.status == 0
    for field in fields(METHODS.get(name)):  # type: ignore[arg-type]
        assert field.name in shown.out


def test_presets_are_shown_with_what_they_set(run: Run) -> None:
    shown = run("methods", "positional_hidden_states").out
    [row] = [line for line in shown.splitlines() if "mistral-7b-instruct-v0.2" in line]
    assert "channels=(213,), layers=(10, 11," in row
    presets = run("methods", "positional_hidden_states", "--json").json["presets"]
    assert presets["llama-2-7b-chat"]["channels"] == [2393]
    assert presets["llama-2-7b-chat"]["factor"] == -1
