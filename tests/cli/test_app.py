"""The command line as a whole: help, version, start-up, wrong usage."""

from __future__ import annotations

import pytest

import rag_middle
from tests.cli.conftest import Run

COMMANDS = ("ask", "chat", "generate", "index", "methods", "serve", "verify")


def test_help_lists_the_commands(run: Run) -> None:
    shown = run("--help")
    assert shown.status == 0
    assert all(command in shown.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.status == 0
    assert ("--json" in shown.out) == (command not in ("chat", "serve"))


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
