"""Messages name what Python calls an argument and what the command line does."""

from __future__ import annotations

import re
from pathlib import Path

import typer

import rag_middle
from rag_middle.cli.app import app


def test_flags_that_messages_name_are_there() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {
        name for command in commands.values() for option in command.params for name in option.opts
    }
    sources = Path(rag_middle.__file__).parent.rglob("*.py")
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    named = set(re.findall(r"[\w\]'}] \((--[a-z-]+)", text))
    assert "--beams" in named
    assert named <= options
