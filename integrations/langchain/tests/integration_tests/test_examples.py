"""The examples, the README and the benchmark run as they are written, on a tiny model."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.reader import reader_path

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "examples" / "langchain_faiss_rag.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="not in a checkout")


def run(monkeypatch: pytest.MonkeyPatch, script: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [script.name, *arguments])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow  # the real embedder
def test_the_script_answers_about_a_folder_with_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nantes.md").write_text("The river of Nantes is Loire.", encoding="utf-8")
    (tmp_path / "paris.md").write_text("The river of Paris is Seine.", encoding="utf-8")
    question = "What is the river of Nantes?"
    model = str(reader_path())
    run(monkeypatch, SCRIPT, question, "--docs", str(tmp_path), "--model", model)
    answer, _, first, second = capsys.readouterr().out.splitlines()
    assert "Loire" in answer
    assert "nantes.md: The river" in first
    assert "paris.md" in second


@pytest.mark.slow
def test_the_benchmark_runs(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT / "benchmarks" / "langchain_overhead.py"
    small = "--rounds 1 --max-tokens 2 --threads 1 --method none --documents 3".split()
    output = tmp_path / "overhead"
    monkeypatch.syspath_prepend(str(script.parent))  # as when it runs as a script
    run(monkeypatch, script, "--model", str(tiny_folder), *small, "--output", str(output))
    written = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    [row], known = written["rows"], written["provenance"]
    assert (known["threads"], known["rounds"], known["clock"]) == (1, 1, "wall")
    assert row["wrapper"]["median"] > 0
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| none | 3 | {row['prompt_tokens']} + 2 |" in page
    assert "Repeat with `python " in page
