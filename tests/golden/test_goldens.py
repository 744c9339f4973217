"""The golden cases shipped with the package hold, and a wrong number is noticed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_middle.errors import FileFormatError, UnknownNameError
from rag_middle.methods import METHODS
from rag_middle.verify import load_cases, shipped_directory, verify
from rag_middle.verify.methods import GOLDEN_METHODS

CASE = "pine_llama_mha_d2_p1_s1"
#: Methods of which no code was published, or of which nothing was recorded: they have naive twins.
UNRECORDED = {
    "attention_buckets",
    "attention_calibration",
    "attn_rank",
    "cacheblend",
    "dsas",
    "long_context_reorder",
    "measured_order",
    "no_inter_document_attention",
    "permutation",
    "prompt_repetition",
    "set_based_prompting",
    "structured_prompting",
    "zero_tuning",
}


@pytest.fixture(scope="module")
def shipped() -> list[dict[str, Any]]:
    path = shipped_directory() / "cases.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return cases


@pytest.fixture
def single(tmp_path: Path, shipped: list[dict[str, Any]]) -> SingleCase:
    """A directory of its own with one shipped case, to break."""
    case = next(case for case in shipped if case["id"] == CASE)
    return SingleCase(tmp_path / "goldens", case)


class SingleCase:
    """One case in a directory."""

    def __init__(self, path: Path, case: dict[str, Any]) -> None:
        self.path = path
        self.arrays = path / case["arrays"]
        self.case = dict(case)
        shutil.copytree(shipped_directory() / case["model"], path / case["model"])
        self.arrays.parent.mkdir()
        shutil.copyfile(shipped_directory() / case["arrays"], self.arrays)
        self.write()

    def write(self, **content: Any) -> None:
        whole = {"format_version": 1, "cases": [self.case], **content}
        (self.path / "cases.json").write_text(json.dumps(whole), encoding="utf-8")

    def change_arrays(self, change: Callable[[dict[str, np.ndarray]], None]) -> None:
        with np.load(self.arrays) as archive:
            arrays = dict(archive)
        change(arrays)
        np.savez(self.arrays, **arrays)


# --- the shipped cases -----------------------------------------------------------------------


@pytest.mark.parametrize("attn_implementation", ["sdpa", "eager"])
@pytest.mark.one_in(2)
def test_every_shipped_case_holds(attn_implementation: Any) -> None:
    report = verify(attn_implementation=attn_implementation)
    assert not report.failures
    assert report.passed
    # Mistakes of the reference code are recorded, and not taken over.
    assert [result.id for result in report.skipped] == [
        "ph_llama_gqa_sdpa_d3_L12_fm1_r16_cv0_sk0",
        "ape_mistral_d3_p5_s8_T09_S09",
    ]
    # float32 sums in another order; far below the tolerance that decides.
    assert max(method.difference or 0 for method in report.methods) < 1e-4


def test_every_method_of_the_package_has_shipped_cases(shipped: list[dict[str, Any]]) -> None:
    covered = {GOLDEN_METHODS[c["method"]].name for c in shipped if c["method"] in GOLDEN_METHODS}
    own = {name for name, kind in METHODS.items() if kind.__module__.startswith("rag_middle.")}
    assert covered == own - UNRECORDED - {"none"}  # no method, nothing to record


# --- what a wrong number does ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["prefill_logits", "decode_logits"])
def test_one_wrong_number_fails(single: SingleCase, name: str) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][-1, 7] += 0.01

    single.change_arrays(change)
    report = verify(single.path)
    [failure] = report.failures
    assert not report.passed
    assert failure.id == CASE
    assert failure.difference == pytest.approx(0.01, rel=0.05)
    assert "differs by 0.01" in failure.reason


def test_a_difference_within_the_tolerance_passes(single: SingleCase) -> None:
    single.change_arrays(lambda arrays: arrays["decode_logits"].__iadd__(0.0005))
    assert verify(single.path).passed
    assert not verify(single.path, tolerance=1e-4).passed


def test_a_nan_fails(single: SingleCase) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays["decode_logits"][0, 0] = math.nan

    single.change_arrays(change)
    report = verify(single.path)
    assert not report.passed
    assert report.to_dict()["methods"][0]["difference"] == "nan"


def test_other_parameters_fail(tmp_path: Path, shipped: list[dict[str, Any]]) -> None:
    case = next(c for c in shipped if c["id"] == "pi_llama_mha_pi2")
    other = SingleCase(tmp_path / "other", {**case, "params": {"scale": 2.01}})
    assert not verify(other.path).passed


def test_a_search_that_ranks_differently_fails(
    tmp_path: Path, shipped: list[dict[str, Any]]
) -> None:
    case = next(c for c in shipped if c["method"] == "positional_hidden_search")
    directory = tmp_path / "search"
    (directory / "arrays").mkdir(parents=True)
    shutil.copyfile(shipped_directory() / case["arrays"], directory / case["arrays"])
    swapped = {**case, "order_all": case["order_all"][::-1]}
    content = {"format_version": 1, "cases": [swapped]}
    (directory / "cases.json").write_text(json.dumps(content), encoding="utf-8")
    [failure] = verify(directory).failures
    assert failure.reason == "differs in order"


def test_a_case_that_raises_fails_and_says_why(single: SingleCase) -> None:
    config = single.path / single.case["model"] / "config.json"
    config.write_text('{"model_type": "never_heard_of"}', encoding="utf-8")
    [failure] = verify(single.path).failures
    assert "never_heard_of" in failure.reason


def test_a_report_without_a_comparison_is_no_success(single: SingleCase) -> None:
    single.case["tags"] = ["reference_bug_sdpa_last_recompute_gt1"]
    single.write()
    report = verify(single.path)
    assert not report.passed
    assert report.methods[0].status == "skipped"


# --- choosing methods ------------------------------------------------------------------------


def test_a_method_is_chosen_by_its_name_in_the_file_too() -> None:
    report = verify(methods=["positional_hidden"])
    assert [method.method for method in report.methods] == ["positional_hidden_states"]


def test_a_method_without_cases_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ms_poe'"):
        verify(methods=["mspoe"])


def test_progress_is_reported_before_each_case() -> None:
    seen: list[tuple[int, int, str]] = []
    verify(methods=["lpes"], progress=lambda *step: seen.append(step))
    assert seen == [(0, 2, "lpes_llama_gqa"), (1, 2, "lpes_mistral")]


# --- directories that are not of the format --------------------------------------------------


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"is not a directory\. Pass a directory with"):
        verify(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ('{"format_version": 1, "cases": []}', "has no cases"),
        ('{"format_version": 2, "cases": [{}]}', "has format_version 2"),
        ('{"format_version": 1, "cases": [{"id": "x"}]}', "without id, method, params or tags"),
    ],
)
def test_a_list_of_cases_that_is_none_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "cases.json").write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=problem):
        load_cases(tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input_ids": "1 2 3"}, "input_ids should be a list of integers"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"model": "models/elsewhere"}, "has no config.json"),
        ({"arrays": "arrays/none.npz"}, "are missing"),
        ({"segments": {"prefix": [0, 1]}}, "segments are wrong"),
        (
            {"segments": {"prefix": [0, 2], "docs": [[1, 9]], "suffix": [9, 9]}},
            "make up the prompt",
        ),
        ({"params": {"temperature": 1}}, "its params do not fit pine"),
    ],
)
def test_a_case_that_does_not_fit_together_is_refused(
    single: SingleCase, change: dict[str, Any], problem: str
) -> None:
    single.case |= change
    single.write()
    with pytest.raises(FileFormatError, match=problem):
        verify(single.path)


def test_code_that_comes_with_a_model_is_not_even_offered(
    single: SingleCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whatever transformers asks
    path = single.path / single.case["model"]
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "own.py").write_text("raise SystemExit('the code was run')\n", encoding="utf-8")
    [failure] = verify(single.path).failures
    assert "custom code" in failure.reason


def test_an_id_used_twice_is_refused(single: SingleCase) -> None:
    single.write(cases=[single.case, single.case])
    with pytest.raises(FileFormatError, match="used twice"):
        verify(single.path)


def test_a_damaged_file_is_refused(single: SingleCase) -> None:
    single.arrays.write_bytes(single.arrays.read_bytes()[:100])
    with pytest.raises(FileFormatError, match="cannot be read"):
        verify(single.path)


def test_rows_outside_the_prompt_are_refused(single: SingleCase) -> None:
    single.change_arrays(lambda arrays: arrays["prefill_positions"].__iadd__(5))
    with pytest.raises(FileFormatError, match="reach outside"):
        verify(single.path)
