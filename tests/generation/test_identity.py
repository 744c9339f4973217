"""What is written into files about a model: another one is told apart, the same one is not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from rag_middle.fingerprint import config_sha256
from rag_middle.generation import RagMiddleModel, model_facts
from tests.adapters import Adapted, adapted_llama
from tests.conftest import FamilyModel
from tests.tiny_models import build, tiny

SWITCHED: dict[str, Callable[[Adapted], object]] = {
    "another adapter": lambda layer: setattr(layer, "_active_adapter", ["b"]),
    "both": lambda layer: setattr(layer, "_active_adapter", ["a", "b"]),
    "off": lambda layer: setattr(layer, "_disable_adapters", True),
    "merged": lambda layer: layer.merged_adapters.append("a"),
    "scaled": lambda layer: layer.scaling.update(a=0.9),
}
ROPE = {"rope_type": "default", "rope_theta": 17.0}
CHANGED: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "RoPE base": ("config", lambda model, _: setattr(model.config, "rope_parameters", ROPE)),
    "norm": ("config", lambda model, _: setattr(model.config, "rms_norm_eps", 0.1)),
    "template": ("tokenizer", lambda _, tokenizer: setattr(tokenizer, "chat_template", "X")),
    "end": ("generation", lambda model, _: setattr(model.generation_config, "eos_token_id", 7)),
    "stop": ("generation", lambda model, _: setattr(model.generation_config, "stop_strings", ".")),
}


@pytest.mark.parametrize("switch", SWITCHED)
def test_adapters_switched_make_another_model(
    switch: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, layer = adapted_llama(vocab_size=len(tokenizer))
    loaded = RagMiddleModel(model, tokenizer, self_check=False)
    identity, facts = loaded.identity(), model_facts(model, tokenizer)
    assert (loaded.identity(), model_facts(model, tokenizer)) == (identity, facts)
    SWITCHED[switch](layer)
    assert _changed(identity, loaded.identity()) == {"adapters"}
    assert facts.version_differences(model_facts(model, tokenizer)) == ["other adapters active"]


@pytest.mark.parametrize("change", CHANGED)
def test_settings_changed_make_another_model(
    change: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    where, make = CHANGED[change]
    tokenizer = copy.deepcopy(tokenizer)
    model = build("settings", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")
    loaded = RagMiddleModel(model, tokenizer, self_check=False)
    identity, facts = loaded.identity(), model_facts(model, tokenizer)
    make(model, tokenizer)
    assert _changed(identity, loaded.identity()) == {where}
    other = model_facts(model, tokenizer)
    names = {"tokenizer": "tokenizer or chat template", "template": "tokenizer or chat template"}
    told = [] if where == "generation" else [f"other {names.get(where, where)}"]
    assert facts.version_differences(other) == told


def _changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_bookkeeping_makes_no_other_model(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build("bookkeeping", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")
    loaded = RagMiddleModel(model, tokenizer, self_check=False)
    before = loaded.identity()
    for name, value in {
        "architectures": ["X"],
        "use_cache": False,
        "pad_token_id": 3,
        "transformers_version": "5.0.0",
        "quantization_config": None,
        "initializer_range": 0.5,
    }.items():
        setattr(model.config, name, value)
    model.generation_config.temperature = 0.5
    model.set_attn_implementation("eager")
    assert loaded.identity() == before


# All families were tried once; these have configs with something of their own.
@pytest.mark.parametrize("family", ["llama", "llama_yarn", "gemma3_text", "gpt_oss", "bloom"])
def test_a_config_is_the_same_saved_loaded_and_in_another_format(
    family: str, family_model: FamilyModel, tmp_path: Path
) -> None:
    model = family_model(family)
    before = config_sha256(model.config)
    model.save_pretrained(tmp_path)
    assert config_sha256(model.config) == before
    for dtype in (torch.float32, torch.bfloat16):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        with torch.no_grad():
            loaded(input_ids=torch.tensor([[1, 2, 3]]))
        assert config_sha256(loaded.config) == before
