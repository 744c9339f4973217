"""How configurations and commands say where a model goes, and in which format."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from rag_middle import RagMiddleModel

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce.config import ModelConfig
from rag_middle_reproduce.models import add_model_options, load_chosen, load_model


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of `from_pretrained`, which loads nothing."""
    arguments: dict[str, Any] = {}

    def load(path: str, **options: Any) -> None:
        arguments.update(options, path=path)

    monkeypatch.setattr(RagMiddleModel, "from_pretrained", load)
    return arguments


def test_format_and_device_of_a_configuration_reach_the_model(loaded: dict[str, Any]) -> None:
    entry = ModelConfig(
        name="a/model", dtype="float16", device_map="auto", quantization_config="4bit"
    )
    load_model(entry, None)
    assert loaded["path"] == "a/model"
    chosen = ("dtype", "device_map", "quantization_config", "device")
    assert [loaded[name] for name in chosen] == ["float16", "auto", "4bit", None]


def test_format_and_device_of_a_command_reach_the_model(loaded: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    add_model_options(parser, try_out="nothing")
    words = "--model a/model --dtype bfloat16 --device-map auto --quantize 8bit".split()
    load_chosen(parser.parse_args(words), attn_implementation="eager")
    assert loaded == {
        "path": "a/model",
        "dtype": "bfloat16",
        "device": None,
        "device_map": "auto",
        "quantization_config": "8bit",
        "attn_implementation": "eager",
    }
