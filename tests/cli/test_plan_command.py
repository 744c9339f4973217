"""``rag-middle plan``: predictions from a config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def _saved(directory: Path, **changed: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(QWEN_7B | changed))
    return directory


@pytest.mark.slow
def test_a_model_of_seven_billion_fits_24_gigabytes(run: Run, tmp_path: Path) -> None:
    arguments = ("plan", "--model", _saved(tmp_path), "--method", "none", "--method", "siw")
    planned = run(*arguments, "--tokens", 4096, "--json").json
    assert planned["predicted"] is True
    assert planned["parameters"] == pytest.approx(7.6e9, rel=0.01)
    assert planned["weight_bytes"]["bfloat16"] == pytest.approx(15.2e9, rel=0.01)
    none, siw = planned["costs"]
    # Keys and values of 4 heads of 128 in 28 layers, two bytes each.
    assert none["cache_bytes"] == 4096 * 2 * 4 * 128 * 28 * 2
    assert none["fits"] == {"bfloat16": True, "int8": True, "4-bit": True}
    assert none["first_token_ratio"] == none["token_ratio"] == 1
    assert 1 <= siw["first_token_ratio"] < 1.1
    # A token reads all weights: no less than 15 GB at the bandwidth of the data sheet.
    assert none["token_seconds"] > 15e9 / 1008e9


def test_models_that_name_their_layers_otherwise_are_quantised_too(
    run: Run, tmp_path: Path
) -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 4096, "n_layer": 6, "n_head": 32, "n_positions": 2048}
    (tmp_path / "config.json").write_text(json.dumps(gpt2))
    planned = run("plan", "--model", tmp_path, "--method", "none", "--tokens", 1000, "--json").json
    weights = planned["weight_bytes"]
    assert (
        weights["4-bit"] < 0.4 * weights["bfloat16"] < weights["int8"] < 0.6 * weights["bfloat16"]
    )


def test_code_of_a_model_does_not_run(run: Run, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = {"AutoConfig": "configuration_own.OwnConfig"}
    model = _saved(tmp_path, model_type="own", auto_map=code)
    (model / "configuration_own.py").write_text(f"open({str(ran)!r}, 'w')")
    shown = run("plan", "--model", model, "--method", "none", input="y\n" * 9)
    assert shown.status == 2
    assert shown.err.startswith("Error: The config of")
    assert not ran.exists()


def test_the_table_says_what_does_not_fit(run: Run, tmp_path: Path) -> None:
    model = _saved(tmp_path, num_hidden_layers=4, intermediate_size=300_000)
    shown = run("plan", "--model", model, "--method", "none", "--tokens", 4096)
    assert "predicted" in shown.out
    [row] = [line for line in shown.out.splitlines() if "none" in line and "GB" in line]
    assert "bfloat16" not in row
    assert "int8" in row


def test_sizes_of_a_tiny_model_are_shown_in_megabytes(run: Run, tmp_path: Path) -> None:
    small = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500}
    model = _saved(tmp_path, **small, **heads)
    shown = run("plan", "--model", model, "--method", "none", "--tokens", 200).out
    assert " MB in bfloat16" in shown
    assert " million numbers" in shown
    assert "0.0 GB" not in shown
    assert "0.00 billion" not in shown


@pytest.mark.slow
def test_methods_that_the_model_cannot_take_are_named_with_the_reason(
    run: Run, tmp_path: Path
) -> None:
    small = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500}
    model = _saved(tmp_path, **small, **heads)
    planned = run("plan", "--model", model, "--tokens", 2000, "--json").json
    by_method = {cost["method"]: cost for cost in planned["costs"]}
    assert {"none", "pine", "ape", "rotor", "ms_poe"} <= set(by_method)
    assert "layers" in by_method["ms_poe"]["problem"] or not by_method["ms_poe"]["problem"]
    assert by_method["ape"]["working_bytes"] >= by_method["ape"]["cache_bytes"] > 0
    short = run("plan", "--model", tmp_path, "--tokens", 100, "--documents", 50, "--json")
    assert short.status == 2
    assert short.json["error"]["type"] == "MethodConfigError"


def test_a_prompt_beyond_the_context_window_is_said_to_be(run: Run, tmp_path: Path) -> None:
    model = _saved(tmp_path, num_hidden_layers=1)
    lengths = ("--tokens", 4000, "--tokens", 40000)
    shown = run("plan", "--model", model, "--method", "none", "--method", "siw", *lengths)
    assert "4000 tokens, 20 documents" in shown.out
    assert "40000 tokens, 20 documents" not in shown.out
    assert shown.out.count("Not planned: a prompt of 40000 tokens exceeds the model's context") == 1


def test_an_encoder_decoder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    shown = run("plan", "--model", tmp_path, "--method", "none")
    assert (shown.status, shown.out) == (2, "")
    assert "t5: it is an encoder-decoder" in shown.err


def test_a_model_that_is_not_there(run: Run, tmp_path: Path) -> None:
    shown = run("plan", "--model", tmp_path / "nothing", "--json")
    assert shown.status == 2
    assert shown.json["error"]["type"] == "ModelNotFoundError"
