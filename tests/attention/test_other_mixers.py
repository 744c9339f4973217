"""Layers in which tokens reach each other by other means, beside their softmax attention."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel

from rag_middle.attention import applied, model_traits
from rag_middle.errors import UnsupportedArchitectureError
from tests.contract.cases import EXAMPLES, LONG
from tests.contract.half import half_precision, rounded
from tests.families import FAMILIES
from tests.tiny_models import build, tiny

BY_DOCUMENT = ("pine", "rotor", "parallel_context_windows", "set_based_prompting", "cacheblend")


def _falcon_h1(**settings: Any) -> PreTrainedModel:
    mamba = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64}
    return build("falcon_h1", tiny(hf.FalconH1Config, **mamba | settings), "sdpa")


@pytest.mark.parametrize("method", [*BY_DOCUMENT, "dysco"])
def test_a_state_space_mixer_beside_attention_is_found(method: str) -> None:
    model = _falcon_h1()
    assert model_traits(model).mixed
    assert model_traits(model).describe()["other_layers"] == 3
    with (
        pytest.raises(UnsupportedArchitectureError, match="softmax attention"),
        applied(model, EXAMPLES[method].neutral, [LONG.tokens]),
    ):
        pass


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mixer_that_adds_little_is_found(dtype: str) -> None:
    model = rounded(_falcon_h1(ssm_out_multiplier=0.01))
    assert model_traits(half_precision(model, dtype)).mixed


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "mlp", "input_layernorm"])
def test_convolutions_are_found_wherever_they_are(part: str) -> None:
    model = FAMILIES["llama"].build()

    def convolve(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        return output + 0.5 * output.roll(1, -2)

    for name, module in model.named_modules():
        if name.endswith(part):
            module.register_forward_hook(convolve)
    assert model_traits(model).mixed


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "llama4_text", "phimoe", "deepseek_v3"])
def test_experts_do_not_mix_tokens(family: str) -> None:
    for dtype in ("float32", "bfloat16"):
        model = half_precision(rounded(FAMILIES[family].build()), dtype)
        assert not model_traits(model).mixed
