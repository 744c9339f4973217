"""``rag-middle verify``."""

import json
from pathlib import Path

import pytest

from rag_middle.verify import shipped_directory
from tests.cli.conftest import Run
from tests.golden.test_goldens import SingleCase


@pytest.fixture
def wrong(tmp_path: Path) -> SingleCase:
    """A shipped case, the numbers of which are wrong."""
    cases = json.loads((shipped_directory() / "cases.json").read_text(encoding="utf-8"))["cases"]
    single = SingleCase(tmp_path / "wrong", next(c for c in cases if c["id"] == "lpes_mistral"))
    single.change_arrays(lambda arrays: arrays["decode_logits"].__iadd__(0.5))
    return single


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


def test_a_wrong_number_gives_exit_status_1_and_is_named(run: Run, wrong: SingleCase) -> None:
    shown = run("verify", wrong.path)
    assert shown.status == 1
    assert "failed lpes_mistral: differs by 0.5" in shown.out


def test_a_method_unknown_here_gives_exit_status_1(run: Run, wrong: SingleCase) -> None:
    wrong.case["method"] = "[/bold]"
    wrong.write()
    shown = run("verify", wrong.path)
    assert shown.status == 1
    assert "unknown" in shown.out
    assert "[/bold]" in shown.out


def test_a_directory_of_something_else_gives_exit_status_2(run: Run, tmp_path: Path) -> None:
    shown = run("verify", tmp_path)
    assert shown.status == 2
    assert shown.err.startswith(f"Error: '{tmp_path}' has no cases.json.")
