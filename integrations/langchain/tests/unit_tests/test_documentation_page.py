"""The page for LangChain's documentation: its code runs, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rag_middle.errors import ModelNotFoundError
from rag_middle.small_model import default_model

PAGE = Path(__file__).parents[2] / "docs" / "rag_middle.mdx"


@pytest.mark.slow
def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        default_model()
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    pattern = r"(\{/\* not run: .+? \*/\}\n\n)?```(python|plaintext) .*?\n(.*?)```"
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    shown = []
    for excuse, language, block in re.findall(pattern, text, flags=re.DOTALL):
        if language == "python" and not excuse:
            exec(block, names)
        elif language == "plaintext":
            shown.append(block)
            assert capsys.readouterr().out == block
    assert len(shown) == 5
