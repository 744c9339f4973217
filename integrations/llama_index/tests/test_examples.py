"""The examples and the README run as they are written, on models from this machine."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.reader import reader_path

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(
    not (EXAMPLES / "llama_index_faiss_rag.py").is_file(), reason="not in a checkout"
)


@pytest.mark.slow  # the real embedder
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("examples/llama_index_faiss_rag.py", "{question} --docs {docs}"),
    ],
)
def test_the_scripts_answer_about_a_folder(
    script: str,
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "nantes.md").write_text("The river of Nantes is Loire.", encoding="utf-8")
    (tmp_path / "paris.md").write_text("The river of Paris is Seine.", encoding="utf-8")
    words = {"docs": str(tmp_path), "question": "What is the river of Nantes?"}
    asked = [word.format(**words) for word in arguments.split()]
    monkeypatch.setattr(sys, "argv", [script, *asked, "--model", str(reader_path())])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.strip()
    assert "nantes.md: The river" in shown or "2 documents under none" in shown
