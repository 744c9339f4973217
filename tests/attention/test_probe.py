"""What is found out about layers, at any width, in any precision: projections, windows, mixers."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from rag_middle.attention import model_traits
from rag_middle.attention.probe import probe
from rag_middle.errors import UnsupportedArchitectureError
from tests.contract.cases import EXAMPLES, ONE_DOCUMENT
from tests.contract.half import half_precision, rounded
from tests.contract.running import assert_refused, distance, logits_under, prompt_logits
from tests.families import FAMILIES
from tests.tiny_models import build, tiny

pytestmark = pytest.mark.thorough

DTYPES = ("float32", "bfloat16", "float16")
#: Norms of each head, of all heads, centred ones, and a clip: no step in one channel adds up.
NOT_AFFINE = ("qwen3", "gemma3_text", "olmo2", "cohere", "stablelm", "exaone4", "olmo")
#: Biases, one matrix for all three, part of a head rotated, no rotation at all.
AFFINE = ("llama", "starcoder2", "gpt_neox", "phi3", "ernie4_5", "gpt2")


@pytest.mark.parametrize("family", [*NOT_AFFINE, *AFFINE])
@pytest.mark.one_in(7)  # of either kind
def test_precision_changes_nothing_in_what_is_found(family: str) -> None:
    exact = FAMILIES[family].build(times=8)
    traits = probe(exact)
    for dtype in DTYPES:
        assert probe(half_precision(exact, dtype)) == traits
    still = range(3) if family == "gpt2" else FAMILIES[family].traits.nope_layers
    for layer in traits.layers.values():
        assert layer.affine_projections == (family in AFFINE)
        assert (layer.rotary is not None) == layer.uses_rope == (layer.layer not in still)


@pytest.mark.parametrize(
    ("projection", "families"),
    [
        ("v_proj", ("llama", "qwen3", "olmo", "gemma3_text", "hunyuan_v1_dense", "opt")),
        (None, ("phi3", "gpt_neox", "gpt2", "deepseek_v3")),  # makes keys, or queries, too
        (None, ("qwen3_next",)),  # a gate on the output is made of hidden states as well
    ],
)
def test_a_module_that_makes_values_only_is_found(
    projection: str | None, families: tuple[str, ...]
) -> None:
    for family in families:
        for layer in probe(FAMILIES[family].build()).layers.values():
            assert layer.value_projection == projection


def test_weights_and_hidden_states_of_any_size_are_told_apart() -> None:
    for name in ("llama", "cohere"):
        for size in (1e-3, 1e2):
            model = rounded(FAMILIES[name].build())
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                    parameter.mul_(size)
            for dtype in DTYPES:
                layer = probe(half_precision(model, dtype)).layers[1]
                assert layer.affine_projections == (name == "llama")
                # Beside queries near zero, any rotation would be close enough in absolute terms.
                assert layer.rotary is not None
                assert layer.rotary.pairing == ("interleaved" if name == "cohere" else "half")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "hunyuan_v1_dense", "cohere2", "llama4_text"])
@pytest.mark.one_in(3)
def test_sums_in_another_order_at_every_call_change_nothing(family: str, dtype: str) -> None:
    model = half_precision(rounded(FAMILIES[family].build()), dtype)
    expected = probe(model)
    generator = torch.Generator().manual_seed(0)

    def inexact(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        noise = torch.randn(out.shape, generator=generator) * torch.finfo(out.dtype).eps
        return (out.float() + noise * out.float().abs().mean()).to(out.dtype)

    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(inexact)
    assert probe(model) == expected


def test_a_model_that_runs_without_its_soft_cap_is_followed() -> None:
    """Older transformers load Gemma 2 under PyTorch's fused attention, which caps nothing."""
    model = FAMILIES["gemma2"].build("eager")
    model.config._attn_implementation = "sdpa"
    prompt = EXAMPLES["pine"].neutral_prompt
    try:
        plain = prompt_logits(model, prompt)
    except ValueError:
        pytest.skip("this version of transformers refuses")
    assert distance(logits_under(model, EXAMPLES["pine"].neutral, prompt), plain) < 1e-4


# -- windows that models put into their masks ------------------------------------------------------


EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "phimoe": (hf.PhimoeConfig, EXPERTS),
    "qwen2_moe": (
        hf.Qwen2MoeConfig,
        EXPERTS | {"moe_intermediate_size": 32, "use_sliding_window": True, "max_window_layers": 3},
    ),
}
WINDOW = 8


def _model(name: str, implementation: str = "sdpa") -> PreTrainedModel:
    config_class, settings = CONFIGS[name]
    config = tiny(config_class, **settings | {"sliding_window": WINDOW})
    return build(name, config, implementation)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_windows_are_read_off_masks(name: str, implementation: str) -> None:
    model = _model(name, implementation)
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    plain = prompt_logits(model, ONE_DOCUMENT)
    windows = [layer.sliding_window for layer in model_traits(model).layers.values()]
    assert WINDOW in windows
    assert set(windows) <= {WINDOW, None}
    if name == "phimoe":
        assert windows == [WINDOW] * 3
    after = [module.config for module in model.modules() if hasattr(module, "config")]
    assert all(one is other for one, other in zip(configs, after, strict=True))
    assert torch.equal(prompt_logits(model, ONE_DOCUMENT), plain)


@pytest.mark.parametrize("method", ["siw", "zero_tuning", "self_extend", "dysco", "dsas"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_neutral_methods_keep_to_the_window(name: str, method: str) -> None:
    model, example = _model(name), EXAMPLES[method]
    assert example.neutral_prompt.ids.shape[1] > WINDOW
    plain = prompt_logits(model, example.neutral_prompt)
    neutral = logits_under(model, example.neutral, example.neutral_prompt)
    assert distance(neutral, plain) < 1e-4


# -- tokens that reach each other by other means ---------------------------------------------------


BY_DOCUMENT = ("pine", "rotor", "parallel_context_windows", "set_based_prompting", "cacheblend")


def _falcon_h1(**settings: Any) -> PreTrainedModel:
    mamba = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64}
    return build("falcon_h1", tiny(hf.FalconH1Config, **mamba | settings), "sdpa")


@pytest.mark.parametrize("method", [*BY_DOCUMENT, "dysco"])
def test_a_state_space_mixer_beside_attention_is_found(method: str) -> None:
    model = _falcon_h1()
    assert model_traits(model).mixed
    assert model_traits(model).reading_in_order == 3
    assert_refused(
        model, EXAMPLES[method].neutral, UnsupportedArchitectureError, "softmax attention"
    )


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
