"""What users may rely on is there: commands with their options, and public names.

`promise.json` is the list. What a user would miss is added to it; removing a line is a decision
that the changelog names, with what to use instead.
"""

import importlib
import json
from pathlib import Path

import pytest
import typer

from rag_middle.cli.app import app

PROMISE = json.loads((Path(__file__).parent / "promise.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", PROMISE["commands"])
def test_every_promised_option_is_there(command: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {name for parameter in commands[command].params for name in parameter.opts}
    assert not set(PROMISE["commands"][command]) - options


@pytest.mark.parametrize("module", PROMISE["names"])
def test_every_promised_name_is_there(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PROMISE["names"][module] if not hasattr(found, name)] == []
