"""Plans of every family: their figures against a model with numbers, and who is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import (
    BartConfig,
    BloomConfig,
    JambaConfig,
    Mamba2Config,
    MambaConfig,
    MixtralConfig,
    PretrainedConfig,
    RwkvConfig,
    T5Config,
    ViTConfig,
)

from rag_middle.costs.gpus import GPUS
from rag_middle.costs.methods import count_method, prompt_of, without_numbers
from rag_middle.costs.plan import CostPlan, plan_costs
from rag_middle.errors import UnsupportedArchitectureError
from rag_middle.methods import PINE, NoMethod
from tests.families import FAMILIES

TOKENS = 120


def planned(config: PretrainedConfig, tokens: list[int] | None) -> CostPlan:
    return plan_costs(config, [NoMethod()], gpu=GPUS["a100"], documents=3, tokens=tokens)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.one_in(11)
def test_weights_and_cache_are_those_of_a_model_with_numbers(name: str) -> None:
    family = FAMILIES[name]
    plan = planned(family.config(), [TOKENS])
    real = family.build().bfloat16()
    assert plan.parameters == real.num_parameters()
    [cost] = plan.costs
    with torch.no_grad():
        out: Any = real(torch.full((1, TOKENS), 7), use_cache=True)
    kept = tree_leaves([vars(layer) for layer in out.past_key_values.layers])
    expected = sum(x.nbytes for x in kept if isinstance(x, Tensor) and x.is_floating_point())
    assert cost.cache_bytes == expected
    assert cost.working_bytes >= cost.cache_bytes > 0
    assert 0 < cost.token_seconds <= cost.first_token_seconds


@pytest.mark.parametrize("name", ["falcon", "falcon_alibi", "gptj", "bloom", "mpt"])
@pytest.mark.one_in(3)
def test_families_with_attention_of_their_own_are_planned(name: str) -> None:
    config = FAMILIES[name].config()
    plan = plan_costs(config, [NoMethod(), PINE()], gpu=GPUS["a100"], documents=3, tokens=[TOKENS])
    none, pine = plan.costs
    # Keys and values of 4 heads of 16 in 3 layers, two bytes each.
    assert none.cache_bytes == TOKENS * 2 * 4 * 16 * 3 * 2
    assert "does not go through" in pine.problem


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "t5: it is an encoder-decoder"),
        (BartConfig(), "bart: it is an encoder-decoder"),
        (MambaConfig(), "mamba: it is a state-space or recurrent model"),
        (Mamba2Config(), "mamba2: it is a state-space or recurrent model"),
        (RwkvConfig(), "rwkv: it is a state-space or recurrent model"),
        (JambaConfig(), "jamba: some of its layers are state-space layers"),
        (ViTConfig(), "vit: transformers has no causal language model"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_what_is_no_decoder_with_attention_is_refused(
    config: PretrainedConfig, reason: str
) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=reason):
        planned(config, None)


def test_a_token_meets_as_many_experts_as_it_is_sent_to() -> None:
    def work(experts: int, tokens: int) -> Any:
        config = MixtralConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=211, num_local_experts=8,
            num_experts_per_tok=experts,
        )  # fmt: skip
        return count_method(without_numbers(config), NoMethod(), prompt_of(tokens, 3))

    expert = 3 * 64 * 128  # three matrices
    one, two = work(1, TOKENS), work(2, TOKENS)
    assert two.prefill.flops - one.prefill.flops == 2 * TOKENS * expert
    assert two.decode.flops - one.decode.flops == 2 * expert
    read = [
        sum(o.bytes * n for o, n in step.operations.items() if o.name == "_grouped_mm")
        for step in (one.decode, two.decode, two.prefill)
    ]
    assert read[0] == pytest.approx(2 * expert, rel=0.1)
    assert read[1] == pytest.approx(2 * read[0], rel=0.1)
    assert read[2] > 8 * 2 * expert


def test_a_prompt_beyond_the_context_window_is_not_planned() -> None:
    config = FAMILIES["llama"].config()
    within, beyond = planned(config, [512, 513]).costs
    assert within.fits
    assert within.fits["bfloat16"]
    assert beyond.fits is None
    assert "513 tokens exceeds the model's context window of 512 tokens" in beyond.problem


@pytest.mark.parametrize(("window", "expected"), [(512, [512]), (5000, [4096, 5000])])
def test_prompts_are_as_long_as_the_context_window_allows(window: int, expected: list[int]) -> None:
    config = FAMILIES["llama"].config(max_position_embeddings=window)
    assert [cost.tokens for cost in planned(config, None).costs] == expected


def test_a_model_that_names_no_window_takes_any_prompt() -> None:
    config = BloomConfig(vocab_size=99, hidden_size=64, n_layer=1, n_head=4)
    assert [cost.tokens for cost in planned(config, None).costs] == [4096, 8192]
