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


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["llama_index_faiss_rag.py", *arguments])
    runpy.run_path(str(EXAMPLES / "llama_index_faiss_rag.py"), run_name="__main__")


@pytest.mark.slow
def test_the_script_shows_that_order_matters_to_the_model_and_not_to_pine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--model", str(folder), "--questions", "1")
    shown = capsys.readouterr().out
    assert "none: different answers" in shown
    assert "pine: the same answers" in shown


@pytest.mark.slow
def test_the_script_answers_right_on_the_bundled_reader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--questions", "4")
    shown = capsys.readouterr().out
    right = re.findall(r"(\w+), .*?(\d+) of 4 right", shown)
    assert [method for method, _ in right] == ["none"] * 3 + ["pine"] * 3
    assert all(int(number) >= 2 for _, number in right)
    assert min(int(number) for method, number in right if method == "pine") >= 3
    assert "pine: the same answers" in shown


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
