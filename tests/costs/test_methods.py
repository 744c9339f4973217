"""The work of whole requests, counted from a config."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
)

from rag_middle.attention import model_traits
from rag_middle.costs.methods import count_method, prompt_of, without_numbers
from rag_middle.methods import AttentionSorting, NoMethod, Permutation

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 211,
    "pad_token_id": None,
}


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config, Gemma3TextConfig])
def test_layers_are_what_a_model_with_numbers_shows(kind: type[PretrainedConfig]) -> None:
    config = kind(**SMALL)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    assert model_traits(without_numbers(config)) == model_traits(model)


def test_products_and_cache_are_those_of_a_run() -> None:
    config = LlamaConfig(**SMALL)
    prompt = prompt_of(120, 3)
    work = count_method(without_numbers(config), NoMethod(), prompt)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as flops:
        out = model(torch.tensor([prompt.input_ids]), logits_to_keep=1)
    # Eager attention computes the keys that a causal kernel leaves out.
    left_out = 3 * 4 * (120 * 120 - 120 * 121 // 2) * 4 * 16
    assert work.prefill.flops == flops.get_total_flops() - left_out
    keys = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
    assert work.cache_bytes == keys // 2  # bfloat16
    assert work.prefill.kept_bytes >= work.cache_bytes
    assert (work.passes, work.prefill.uploads, work.decode.uploads) == (0, 0, 0)


def test_passes_before_the_prompt_and_branches_count() -> None:
    model = without_numbers(LlamaConfig(**SMALL))
    prompt = prompt_of(120, 3)
    plain = count_method(model, NoMethod(), prompt)
    assert count_method(model, AttentionSorting(iterations=2), prompt).passes == 2
    several = count_method(model, Permutation(orders=3), prompt)
    # All but the angles of the rotation, which are made once.
    assert several.prefill.flops == pytest.approx(3 * plain.prefill.flops, rel=1e-4)
    assert several.cache_bytes == 3 * plain.cache_bytes


def test_prompts_have_the_length_asked_for() -> None:
    prompt = prompt_of(1980, 20)
    assert len(prompt.input_ids) == 1980
    assert prompt.layout.document_lengths == (95,) * 20
    with pytest.raises(ValueError, match="20 documents"):
        prompt_of(90, 20)
