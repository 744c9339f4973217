"""The benchmarks run, and leave no method out. What they measure is measured elsewhere."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from rag_middle.methods import METHODS, Method

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def overhead() -> dict[str, Any]:
    """The names of ``benchmarks/overhead.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))  # as when it runs as a script
        return runpy.run_path(str(FOLDER / "overhead.py"))


def test_every_method_has_a_row_in_the_table_of_costs(overhead: dict[str, Any]) -> None:
    rows: dict[str, Method] = overhead["METHODS"]
    ours = {n for n, kind in METHODS.items() if kind.__module__.startswith("rag_middle.")}
    assert {part.name for method in rows.values() for part in method.parts} == ours - {
        "none",  # what the others are compared with
        "compose",
    }
    assert set(overhead["TARGETS"]) <= set(rows)


def test_every_row_can_be_measured(overhead: dict[str, Any]) -> None:
    config = LlamaConfig(  # as many layers as there, and enough channels, but small
        hidden_size=128, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        vocab_size=1000,
    )  # fmt: skip
    model, prompt = LlamaForCausalLM(config).eval(), overhead["prompt"](3, tokens=5)
    for name, method in overhead["METHODS"].items():
        prefill, decode = overhead["run"](model, method, prompt, "cpu")
        assert min(prefill, decode) > 0, name


def test_a_report_states_rows_and_what_they_were_measured_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    reporting = runpy.run_path(str(FOLDER / "reporting.py"))
    rows = [{"way": "ape", "first_token_ms": 12.0, "ratio": 0.5, "ratio_range": [0.4, 0.6]}]
    table = reporting["first_token_table"](rows)
    known = reporting["facts"]("cpu", rounds=3)
    reporting["report"](table, rows, known, tmp_path / "new" / "result")
    shown = capsys.readouterr().out
    assert "| ape | 12.0 ms | 0.500 (0.400 to 0.600) |" in shown
    assert "- rounds: 3" in shown
    written = json.loads((tmp_path / "new" / "result.json").read_text())
    assert written == {"provenance": known, "rows": rows}
