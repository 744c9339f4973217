"""``rag-middle verify``."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rag_middle.verify import shipped_directory
from tests.cli.conftest import Run


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """Two shipped cases, the numbers of one of them wrong."""
    content = json.loads((shipped_directory() / "cases.json").read_text(encoding="utf-8"))
    cases = [
        case for case in content["cases"] if case["id"] in ("pi_llama_mha_pi2", "lpes_mistral")
    ]
    for case in cases:
        shutil.copytree(shipped_directory() / case["model"], tmp_path / case["model"])
        (tmp_path / "arrays").mkdir(exist_ok=True)
        shutil.copyfile(shipped_directory() / case["arrays"], tmp_path / case["arrays"])
    path = tmp_path / "arrays" / "lpes_mistral.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["decode_logits"] += 0.5
    np.savez(path, **arrays)
    content["cases"] = cases
    (tmp_path / "cases.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_the_shipped_cases_pass(run: Run) -> None:
    shown = run("verify")
    assert shown.status == 0
    assert "passed" in shown.out
    assert "failed" not in shown.out
    assert "skipped 1: reference_bug_sdpa_last_recompute_gt1" in shown.out
    assert "transformers" in shown.out


def test_the_report_as_json(run: Run) -> None:
    shown = run("verify", "--json", "--method", "lpes", "--attn-implementation", "eager")
    assert shown.status == 0
    assert shown.err == ""
    assert shown.json["passed"] is True
    assert shown.json["attn_implementation"] == "eager"
    [lpes] = shown.json["methods"]
    assert (lpes["method"], lpes["cases"], lpes["passed"]) == ("lpes", 2, 2)
    assert 0 < lpes["difference"] < 1e-4


def test_a_wrong_number_gives_exit_status_1_and_is_named(run: Run, wrong: Path) -> None:
    shown = run("verify", wrong)
    assert shown.status == 1
    assert "failed lpes_mistral: differs by 0.5" in shown.out


def test_a_method_unknown_here_gives_exit_status_1(run: Run, wrong: Path) -> None:
    content = json.loads((wrong / "cases.json").read_text(encoding="utf-8"))
    content["cases"] = [{**content["cases"][0], "method": "[/bold]"}]
    (wrong / "cases.json").write_text(json.dumps(content), encoding="utf-8")
    shown = run("verify", wrong)
    assert shown.status == 1
    assert "unknown" in shown.out
    assert "[/bold]" in shown.out


def test_a_directory_of_something_else_gives_exit_status_2(run: Run, tmp_path: Path) -> None:
    shown = run("verify", tmp_path)
    assert shown.status == 2
    assert shown.err.startswith(f"Error: '{tmp_path}' has no cases.json.")
