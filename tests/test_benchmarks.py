"""The benchmarks run, and leave no method out. What they measure is measured elsewhere."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rag_middle.methods import METHODS, Method
from tests.retrieval.embedding import HashingEmbedder

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


class CountingEmbedder(HashingEmbedder):
    """Stands for a sentence-transformers model, which takes seconds to load."""

    max_tokens = 256

    def count_tokens(self, text: str) -> int:
        return len(text)


def test_retrieval_is_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.syspath_prepend(str(FOLDER))
    towns = {"Lyon": "Rhône", "Nantes": "Loire", "Rome": "Tiber"}
    lines = [
        {"question": f"What lies on the {river}?", "title": town, "text": f"{town}: {river}."}
        for town, river in towns.items()
    ]
    file, out = tmp_path / "towns.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = runpy.run_path(str(FOLDER / "retrieval_recall.py"))
    names = script["main"].__globals__
    names["SentenceTransformerEmbedder"] = lambda name, device: CountingEmbedder()
    names["CUTOFFS"] = (1, 3)
    names["PACKAGES"] = ("faiss-cpu",)
    monkeypatch.setattr("sys.argv", ["retrieval_recall.py", str(file), "--out", str(out)])
    script["main"]()
    written = json.loads((out / "retrieval_recall.json").read_text())
    assert [row["recall"]["3"] for row in written["rows"]] == [1.0, 1.0]
    known = written["provenance"]
    assert (known["questions"], known["file"]) == (3, "towns.jsonl")
    assert str(tmp_path) not in json.dumps(known)
    assert "Repeat with `python benchmarks/retrieval_recall.py towns.jsonl`" in (
        out / "retrieval_recall.md"
    ).read_text(encoding="utf-8")


def test_the_operator_of_pine_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    small = "--documents 2 --mean-length 5 --heads 2 --groups 2 --rounds 1".split()
    monkeypatch.setattr("sys.argv", ["pine_op.py", *small])
    threads = torch.get_num_threads()
    runpy.run_path(str(FOLDER / "pine_op.py"), run_name="__main__")
    torch.set_num_threads(threads)
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"][0]["tokens"] == 90
    assert shown["rows"][0]["median_ms"]["pine"] > 0
    assert (shown["provenance"]["clock"], shown["provenance"]["threads"]) == ("wall", 1)


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


def test_a_file_is_split_and_put_together_again(tmp_path: Path) -> None:
    parts = runpy.run_path(str(FOLDER / "parts.py"))
    whole, folder, back = tmp_path / "model.gguf", tmp_path / "parts", tmp_path / "back"
    whole.write_bytes(bytes(range(250)))
    parts["split"](whole, folder, 100)
    assert len(list(folder.iterdir())) == 3 + 1
    parts["join"](folder, back)
    assert back.read_bytes() == whole.read_bytes()
    (folder / "001").write_bytes(bytes(100))
    with pytest.raises(SystemExit, match="001 is missing or damaged"):
        parts["join"](folder, tmp_path / "other")


@pytest.mark.slow
def test_start_up_is_measured_of_commands_that_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", ["startup.py", "--rounds", "1", "--output", f"{tmp_path}/out"])
    runpy.run_path(str(FOLDER / "startup.py"), run_name="__main__")
    rows = json.loads((tmp_path / "out.json").read_text("utf-8"))["rows"]
    assert len(rows) == 6
    assert all(row["wall_s"] > 0 for row in rows)
    assert "ask, existing index" in (tmp_path / "out.md").read_text("utf-8")
