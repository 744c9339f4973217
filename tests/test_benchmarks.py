"""The benchmarks run, and leave no method out. What they measure is measured elsewhere."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from rag_middle.methods import METHODS, Method
from tests.reader import reader_path

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


@pytest.mark.slow
def test_every_row_can_be_measured(overhead: dict[str, Any]) -> None:
    config = LlamaConfig(  # as many layers as there, and enough channels, but small
        hidden_size=128, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        vocab_size=1000,
    )  # fmt: skip
    model, prompt = LlamaForCausalLM(config).eval(), overhead["prompt"](3, tokens=5)
    for name, method in overhead["METHODS"].items():
        prefill, decode = overhead["run"](model, method, prompt, "cpu")
        assert min(prefill, decode) > 0, name


@pytest.mark.slow
def test_the_overhead_of_langchain_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = "--rounds 1 --max-tokens 2 --threads 1 --method none --documents 3".split()
    output = tmp_path / "overhead"
    arguments = ["--model", str(reader_path()), *small, "--output", str(output)]
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", ["langchain_overhead.py", *arguments])
    runpy.run_path(str(FOLDER / "langchain_overhead.py"), run_name="__main__")
    [row] = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert row["wrapper"]["median"] > 0
    page = output.with_suffix(".md").read_text()
    assert f"| none | 3 | {row['prompt_tokens']} + 2 |" in page


@pytest.mark.slow
def test_a_roofline_is_labelled_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    file = tmp_path / "roofline.json"
    chosen = "--shapes 7b --tokens 400 --methods lpes permutation".split()
    monkeypatch.setattr("sys.argv", ["gpu_roofline.py", *chosen, "--output", str(file)])
    runpy.run_path(str(FOLDER / "gpu_roofline.py"), run_name="__main__")
    assert "RTX 4090 (predicted)" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert "predicted" in written["provenance"]["figures"]
    by_method = {row["method"]: row for row in written["rows"] if row["gpu"] == "a100"}
    assert by_method["none"]["prefill_ratio"] == 1
    assert by_method["permutation"]["prefill_ratio_computing"] > 3


def test_every_deliberate_fault_changes_one_place_that_exists() -> None:
    names = runpy.run_path(str(FOLDER / "mutations.py"))
    faults, root = names["FAULTS"], FOLDER.parent
    assert len(faults) >= 40
    assert len({(fault.path, fault.name) for fault in faults}) == len(faults)
    for fault in faults:
        text = (root / fault.path).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.path}: {fault.name}: mend the fault's text"
        assert fault.old != fault.new
        compile(text.replace(fault.old, fault.new), fault.path, "exec")
        assert all((root / path).exists() for path in fault.tests)


@pytest.mark.slow
def test_every_step_on_a_gpu_runs_on_a_cpu_with_small_shapes(tmp_path: Path) -> None:
    command = ["bash", FOLDER / "gpu.sh", tmp_path, "--dry-run"]
    settings = {"PYTHON": sys.executable, "WEIGHTS": str(tmp_path)}
    subprocess.run(command, env={**os.environ, **settings}, check=True, timeout=280)
    tables = runpy.run_path(str(FOLDER / "gpu_table.py"))
    kernels, costs = (tables["read"](tmp_path / f"{name}.json") for name in ("kernels", "methods"))
    errors = {row["operator"]: row["relative_error"] for row in kernels if "ratio" in row}
    assert len(errors) == 5
    assert max(errors.values()) < 0.01  # bf16
    assert not [row for row in costs if "error" in row]
    assert all(min(row["prefill_ratio"], row["decode_ratio"]) > 0 for row in costs)
    assert {row["kernels"] for row in costs if row["method"] == "pine"} == {"auto", "torch"}
    assert "| `pine` |" in tables["cost_table"](tmp_path)
    assert "| pine, prompt | tiny |" in tables["kernel_table"](kernels)
