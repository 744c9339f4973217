"""Modules that do more than hand queries, keys and values to transformers' attention interface."""

import contextlib
from functools import cache, partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers import GraniteSWAConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

from rag_middle.attention import applied, model_traits
from rag_middle.errors import UnsupportedArchitectureError, UnsupportedGenerationError
from rag_middle.methods import APE, LPES, PINE, Method, MoICE, MsPoE, NoMethod, SelfExtend
from tests import tiny_models
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, SHORT
from tests.contract.running import (
    assert_cached_equals_recomputed,
    assert_refused,
    assert_rows_equal_prompts_alone,
    distance,
    generated,
    generated_under,
    logits_under,
)
from tests.families import FAMILIES
from tests.tiny_models import build, tiny

pytestmark = pytest.mark.thorough

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": ..., "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip

#: Family, its settings, and what is said of it.
PECULIAR: dict[str, tuple[type[hf.PretrainedConfig], dict[str, Any], str]] = {
    "doge": (hf.DogeConfig, {}, "change the mask"),
    "diffllama": (hf.DiffLlamaConfig, {}, "several times"),
    "deepseek_v4": (hf.DeepseekV4Config, {"num_local_experts": 4}, "keys are its values"),
    "deepseek_v32": (
        hf.DeepseekV32Config,
        LATENT | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
        "pass a indices",
    ),
    "bert": (hf.BertConfig, {}, "not causal"),
}


@pytest.mark.parametrize("name", PECULIAR)
def test_what_methods_would_undo_is_refused(name: str) -> None:
    config_class, settings, said = PECULIAR[name]
    model = build(name, tiny(config_class, **settings), "eager")
    assert said in model_traits(model).obstacle
    for method in ACTIVE.values():
        assert_refused(model, method, UnsupportedArchitectureError, said)


def test_attention_may_go_by_another_name() -> None:
    """LongcatFlashMLA, of which a decoder layer has two, with layer indices of their own."""
    settings = LATENT | {
        "num_hidden_layers": ..., "num_layers": 2, "head_dim": 8, "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_topk": 2,
    }  # fmt: skip
    config = tiny(hf.LongcatFlashConfig, **settings)
    model = build("longcat_flash", config, "sdpa")
    assert list(model_traits(model).layers) == [0, 1, 2, 3]
    for method in (ACTIVE["siw"], ACTIVE["dysco"], LPES(factors=1.4)):
        assert_rows_equal_prompts_alone(model, method, 1e-4)
        for prompt in (LONG, SHORT):
            assert_cached_equals_recomputed(model, method, 1e-4, prompt)
    assert_refused(model, ACTIVE["pine"], UnsupportedArchitectureError)


class _Mixer(LlamaAttention):
    """Named otherwise, and hiding whom it calls, as a model file from the Hub may."""

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, **arguments: Any
    ) -> Any:
        return super().forward(hidden_states, **arguments)


def test_without_modules_of_attention_only_methods_around_the_model_run() -> None:
    model = FAMILIES["llama"].build()
    with torch.no_grad():
        plain = model(LONG.ids).logits
        for layer in model.model.layers:
            layer.self_attn.__class__ = _Mixer
        assert "attention interface" in model_traits(model).obstacle
        for method in ACTIVE.values():
            assert_refused(model, method, UnsupportedArchitectureError, "attention interface")
        with applied(model, NoMethod(), [LONG.tokens]):
            assert distance(model(LONG.ids).logits, plain) == 0


@pytest.mark.parametrize("name", ACTIVE)
@pytest.mark.one_in(6)
def test_a_module_may_take_views_of_what_attention_gives(name: str) -> None:
    model = build("jetmoe", tiny(hf.JetMoeConfig), "sdpa")
    assert generated_under(model, ACTIVE[name], [LONG, SHORT])[1].isfinite().all()


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.one_in(4)
def test_neutral_parameters_leave_queries_that_grow_as_they_are(name: str) -> None:
    """Tokens that are read again (DySCO) keep their place among those that were."""
    model, example = _growing_queries(), EXAMPLES[name]
    prompt = example.neutral_prompt
    expected = generated(model, [prompt])[1]
    with contextlib.suppress(UnsupportedArchitectureError):
        assert distance(generated_under(model, example.neutral, [prompt])[1], expected) < 1e-4


# CacheBlend recomputes other tokens in another pass.
@pytest.mark.parametrize("name", [name for name in ACTIVE if not name.startswith("cacheblend")])
@pytest.mark.one_in(5)
def test_queries_grow_by_place_with_a_cache_and_without(name: str) -> None:
    with contextlib.suppress(UnsupportedArchitectureError):
        assert_cached_equals_recomputed(_growing_queries(), ACTIVE[name], 1e-4)


@pytest.mark.parametrize("name", ["pine", "ape", "set_based_prompting"])
def test_queries_grow_by_the_place_that_a_method_gives(name: str) -> None:
    """Which does not depend on the order of the documents."""
    model = _growing_queries()
    method = ACTIVE["pine"] if name == "pine" else EXAMPLES[name].neutral
    given, other = (logits_under(model, method, p) for p in (LONG, LONG.permuted((2, 0, 1))))
    start = LONG.layout.suffix_start
    assert distance(given[start:], other[start:]) < 1e-4


@pytest.mark.parametrize("method", [LPES(factors=(1.0, 1.3, 1.9)), MsPoE(first_layer=0)], ids=str)
def test_positions_may_have_axes(method: Method) -> None:
    """Models that see pictures give a token a place on each of three axes, of text the same."""
    model = build("axes", tiny(hf.Qwen3_5TextConfig, **HYBRID), "sdpa")
    assert_rows_equal_prompts_alone(model, method, 1e-4)
    for prompt in (LONG, SHORT):
        assert_cached_equals_recomputed(model, method, 1e-4, prompt)
    plain = generated(model, [LONG])[1]
    assert distance(generated_under(model, method, [LONG])[1], plain) > 1e-3


HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip


@cache
def _growing_queries() -> PreTrainedModel:
    """Every few positions, as in released models every 16384."""
    rope = {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 4, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }  # fmt: skip
    return build("ministral3", tiny(hf.Ministral3Config, rope_parameters=rope), "sdpa")


@pytest.mark.parametrize("keyword", [{"scalings": torch.ones(1)}, {"alora_offsets": [2]}], ids=str)
def test_adapters_weighed_by_the_pass_are_not_read_again(keyword: dict[str, Any]) -> None:
    """As PEFT's X-LoRA and aLoRA hand their layers what they go by, for the length of a pass."""

    def weigh(*_: Any, **__: Any) -> None: ...

    model = FAMILIES["llama"].build()
    weights = partial(weigh, **keyword)
    model.model.layers[0].self_attn.q_proj.register_forward_pre_hook(weights, with_kwargs=True)
    with (
        torch.no_grad(),
        pytest.raises(UnsupportedGenerationError, match="X-LoRA"),
        applied(model, ACTIVE["dysco"], [LONG.tokens]),
    ):
        model(input_ids=LONG.ids)


# -- layers with rotary modules of their own -------------------------------------------------------


CHANGING: list[Method] = [
    LPES(factors=1.4),
    MsPoE(first_layer=0),
    MoICE(routers="uniform", base_factors=(1.0, 3.0)),
    SelfExtend(group=3, window=4),
    PINE(),
    APE(temperature=0.6, scale=0.8),
]


@pytest.fixture(params=[(1e4, 10.0, 1e4), (10.0, 1e4, 0)], ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    """A layer of base 0 has no rotary positions."""
    config = tiny_models.tiny(
        GraniteSWAConfig, layer_types=["full_attention"] * 3, layer_rope_theta=list(request.param)
    )
    return tiny_models.build("granite_swa", config, "eager")


@pytest.mark.parametrize("method", CHANGING, ids=lambda method: type(method).__name__)
@pytest.mark.one_in(3)
def test_decoding_with_a_cache_equals_recomputation(model: Any, method: Method) -> None:
    assert_cached_equals_recomputed(model, method, 1e-3)
