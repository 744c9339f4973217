"""The examples and the README run as they are written, on models from this machine."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import LLM
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.reader import reader_path

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(
    not (EXAMPLES / "llama_index_faiss_rag.py").is_file(), reason="not in a checkout"
)


@pytest.fixture
def folder(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """The tiny model as `--model` takes it."""
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


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


def test_the_code_of_the_readme_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All Python blocks in a row; only the name of the model differs."""
    readme = (ROOT / "integrations" / "llama_index" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    code = "\n".join(blocks)
    assert "MODEL" in code
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(re.sub(r"^MODEL = .*$", f"MODEL = {str(folder)!r}", code, flags=re.MULTILINE), names)
    assert isinstance(names["Settings"].llm, LLM)
    assert len(names["response"].source_nodes) == 4
    assert names["response"].source_nodes[0].node.get_content() == names["texts"][1]
