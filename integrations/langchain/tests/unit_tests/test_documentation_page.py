"""The page for LangChain's documentation: its code runs, and prints what the page shows."""

import re
from pathlib import Path

import pytest

from tests.reader import reader_path

PAGE = Path(__file__).parents[2] / "docs" / "rag_middle.mdx"


def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    pattern = r"(\{/\* not run: .+? \*/\}\n\n)?```(python|plaintext) .*?\n(.*?)```"
    text = PAGE.read_text(encoding="utf-8")
    text = text.replace("Qwen/Qwen2.5-7B-Instruct", str(reader_path()))
    names: dict[str, object] = {}
    shown = []
    for excuse, language, block in re.findall(pattern, text, flags=re.DOTALL):
        if language == "python" and not excuse:
            exec(block, names)
        elif language == "plaintext":
            shown.append(block)
            assert capsys.readouterr().out == block
    assert len(shown) == 5
