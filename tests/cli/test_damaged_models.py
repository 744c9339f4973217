"""Commands on a model whose folder holds a damaged file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", "[]", "should hold a JSON object, got list"),
        ("config.json", "{", "not valid JSON"),
        ("tokenizer.json", "7", "should hold a JSON object, got int"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer_config.json", "[" * 50_000, "nested too deeply"),
        ("generation_config.json", '"x"', "should hold a JSON object, got str"),
    ],
)
def test_commands_say_it_in_one_line(
    file: str, content: str, reason: str, chat_model: Path, tmp_path: Path, run: Run
) -> None:
    folder = Path(shutil.copytree(chat_model, tmp_path / "model"))
    (folder / file).write_text(content)
    prompt = folder / "prompt.json"
    prompt.write_text(json.dumps({"prefix": "", "documents": ["a"], "suffix": "b"}))
    commands: list[tuple[object, ...]] = [("generate", "--model", folder, "--prompt", prompt)]
    if file == "config.json":
        commands.append(("plan", "--model", folder))
    for command in commands:
        shown = run(*command)
        assert (shown.status, shown.out) == (2, "")
        assert shown.err.count("\n") == 1
        assert reason in shown.err
        assert file in shown.err
