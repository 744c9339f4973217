"""The examples run, without a network, and show what they say they show."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.cli.answering import use_named_embedder, write_documents
from tests.reader import reader_path
from tests.tiny_models import saved, speaking
from tests.tokenizers import CHATML, byte_level_bpe

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_quickstart_answers_from_a_folder_with_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_level_bpe(chat_template=CHATML)
    model = speaking("quickstart", tokenizer, max_position_embeddings=1024)
    folder = saved(model, tmp_path / "model")
    use_named_embedder(monkeypatch, tmp_path / "cache")

    quickstart = runpy.run_path(str(EXAMPLES / "quickstart.py"))
    docs = write_documents(tmp_path / "docs")
    quickstart["main"](docs, "Which river is Nantes on, the Loire?", folder, "pine")
    question, *_, facts = capsys.readouterr().out.strip().splitlines()
    assert question == "Which river is Nantes on, the Loire?"
    assert facts.startswith("pine, ")


@pytest.mark.slow  # the real embedder
@pytest.mark.parametrize("script", ["langchain_faiss_rag.py", "llama_index_faiss_rag.py"])
def test_scripts_of_frameworks_answer_about_a_folder_with_sources(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for town, river in {"Nantes": "Loire", "Paris": "Seine"}.items():
        (tmp_path / f"{town.lower()}.md").write_text(f"The river of {town} is {river}.")
    question = "What is the river of Nantes?"
    asked = [question, "--docs", str(tmp_path), "--model", str(reader_path())]
    monkeypatch.setattr(sys, "argv", [script, *asked])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    shown = capsys.readouterr().out
    assert "Loire" in shown
    assert "nantes.md: The river" in shown
