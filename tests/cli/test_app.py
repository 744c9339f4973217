"""The command line as a whole: help, version, start-up, wrong usage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import rag_middle
from rag_middle.cli.app import app
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


@pytest.mark.parametrize("command", ["ask", "diagnose"])
def test_help_fits_two_screens(run: Run, command: str) -> None:
    assert len(run(command, "--help").out.splitlines()) < 80


def test_help_shows_the_markers_as_they_are_written(run: Run) -> None:
    shown = run("generate", "--help").out
    assert "[[rm:doc]]" in shown
    assert "[[/rm:doc]]" in shown


def test_version(run: Run) -> None:
    assert run("--version").out == f"rag-middle {rag_middle.__version__}\n"


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
