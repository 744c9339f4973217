"""The benchmarks run, and leave no method out. What they measure is measured elsewhere."""

from __future__ import annotations

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
