"""One tiny random model per family of decoder, and what is known of each from its source.

`FAMILIES[name].build("sdpa")` gives the model. `Traits` were written down by reading the modelling
code, not by asking the package: they are what its detection is tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import transformers as hf
from transformers import PretrainedConfig, PreTrainedModel

from tests import tiny_models
from tests.tiny_models import HEAD_SIZE, KEY_VALUE_HEADS, tiny

__all__ = ["FAMILIES", "SUPPORTED", "Family", "Traits"]

Implementation = Literal["sdpa", "eager"]

NO_INTERFACE = "its attention does not go through the attention interface"
NO_ROTATION = "positions are embeddings added to the input, nothing is rotated"
LATENT = "keys are cached as a shared latent and expanded before attention"
COMPLEX = "the rotation is one complex tensor and attention runs in chunks"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What the source of a family says. Layers are 0-based indices, windows count tokens.

    Attributes:
        positions: how a token learns its place.
        rope_type: frequency scaling; ``per layer`` where sliding layers have frequencies of
            their own.
        pairing: channel `i` turns with channel ``i + rotary_size/2`` (half) or its neighbour.
        rotary_size: channels of a head that are rotated, always the first ones.
        head_size: channels of a head.
        key_value_heads: heads of the keys.
        qk_norm: whether queries and keys are normalised before or after rotation.
        fused: one matrix gives queries, keys and values.
        softcap: bound of the attention logits.
        sinks: each head has one more logit in the softmax.
        window: keys a sliding layer's query sees, itself included.
        sliding_layers: layers with that window.
        nope_layers: attention layers without rotation.
        linear_layers: layers without softmax attention.
        unsupported: why the attention of this family cannot be taken over; None where it can.
    """

    positions: Literal["rope", "alibi", "learned"] = "rope"
    rope_type: str = "default"
    pairing: Literal["half", "interleaved"] | None = "half"
    rotary_size: int = HEAD_SIZE
    head_size: int = HEAD_SIZE
    key_value_heads: int = KEY_VALUE_HEADS
    qk_norm: Literal["before", "after"] | None = None
    fused: bool = False
    softcap: float | None = None
    sinks: bool = False
    window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    nope_layers: tuple[int, ...] = ()
    linear_layers: tuple[int, ...] = ()
    unsupported: str | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family, its traits, and how the unmodified model itself behaves.

    Attributes:
        stateful: logits depend on what the model has seen before, so each test needs its own.
        tolerance: largest difference of logits that counts as equal.
        note: the reason of one of these, or what the config is there to cover.
    """

    name: str
    config: Callable[..., PretrainedConfig]
    traits: Traits
    implementations: tuple[Implementation, ...] = ("sdpa", "eager")
    stateful: bool = False
    tolerance: float = 1e-4  # float32 sums in another order; a wrong mask moves logits by 0.1
    note: str = ""

    def build(self, attn_implementation: str | None = None, **overrides: Any) -> PreTrainedModel:
        """A new model, always with the same weights. Default: the first implementation.

        Settings of the config may be replaced; with ``times``, all of its widths are multiplied.
        """
        implementation = attn_implementation or self.implementations[0]
        return tiny_models.build(self.name, self.config(**overrides), implementation)


def _rope(theta: float = 10_000.0, **settings: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **settings}


FAMILIES: dict[str, Family] = {}


def _add(
    name: str,
    config_class: type[PretrainedConfig],
    traits: Traits | None = None,
    *,
    vanilla: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    FAMILIES[name] = Family(
        name=name,
        config=lambda **overrides: tiny(config_class, **settings | overrides),
        traits=traits or Traits(),
        **(vanilla or {}),
    )


SLIDING_THEN_FULL = ["sliding_attention", "sliding_attention", "full_attention"]
EAGER_ONLY: dict[str, Any] = {"implementations": ("eager",)}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# --- halves rotated, one rotary embedding for all layers --------------------------------------
_add("llama", hf.LlamaConfig, attention_bias=True, mlp_bias=True)
_add("mistral", hf.MistralConfig, sliding_window=None)
_add(
    "mistral_sliding",
    hf.MistralConfig,
    Traits(window=8, sliding_layers=(0, 1, 2)),
    sliding_window=8,
)
_add("qwen2", hf.Qwen2Config, use_sliding_window=False)
_add(
    "qwen2_sliding",
    hf.Qwen2Config,
    Traits(window=8, sliding_layers=(2,)),
    use_sliding_window=True,
    sliding_window=8,
    max_window_layers=2,
)
_add("qwen3", hf.Qwen3Config, Traits(qk_norm="before"))
_add("qwen3_moe", hf.Qwen3MoeConfig, Traits(qk_norm="before"), **MOE)
_add("mixtral", hf.MixtralConfig, num_local_experts=4)
_add("gemma", hf.GemmaConfig)
_add("arcee", hf.ArceeConfig)
_add("bitnet", hf.BitNetConfig)
_add("seed_oss", hf.SeedOssConfig)
_add("starcoder2", hf.Starcoder2Config, sliding_window=None, use_bias=True)
_add("granite", hf.GraniteConfig, attention_multiplier=0.25, embedding_multiplier=2.0)
_add(
    "granitemoe",
    hf.GraniteMoeConfig,
    attention_multiplier=0.25,
    num_local_experts=4,
    num_experts_per_tok=2,
)
_add("apertus", hf.ApertusConfig, Traits(qk_norm="before"), rope_parameters=_rope())
_add("olmo", hf.OlmoConfig, clip_qkv=2.0)
_add("olmo2", hf.Olmo2Config, Traits(qk_norm="before"))
_add(
    "olmoe",
    hf.OlmoeConfig,
    Traits(qk_norm="before"),
    clip_qkv=2.0,
    num_experts=4,
    num_experts_per_tok=2,
)
_add(
    "dots1",
    hf.Dots1Config,
    Traits(qk_norm="before", key_value_heads=2),
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
    sliding_window=None,
)
_add("phimoe", hf.PhimoeConfig, num_local_experts=4, num_experts_per_tok=2)
_add("hunyuan_v1_dense", hf.HunYuanDenseV1Config, Traits(qk_norm="after"))

# --- part of each head rotated ----------------------------------------------------------------
_add(
    "phi",
    hf.PhiConfig,
    Traits(rotary_size=8, qk_norm="before"),
    rope_parameters=_rope(partial_rotary_factor=0.5),
    qk_layernorm=True,
    head_dim=...,
)
_add(
    "phi3",
    hf.Phi3Config,
    Traits(rotary_size=12, fused=True),
    rope_parameters=_rope(partial_rotary_factor=0.75),
    sliding_window=None,
    head_dim=...,
)
_add(
    "gpt_neox",
    hf.GPTNeoXConfig,
    Traits(rotary_size=4, key_value_heads=4, fused=True),
    rope_parameters=_rope(partial_rotary_factor=0.25),
    num_key_value_heads=...,
    head_dim=...,
)
_add(
    "stablelm",
    hf.StableLmConfig,
    Traits(rotary_size=4, qk_norm="before"),
    rope_parameters=_rope(partial_rotary_factor=0.25),
    qk_layernorm=True,
    use_qkv_bias=True,
    head_dim=...,
)
_add(
    "nemotron",
    hf.NemotronConfig,
    Traits(rotary_size=8),
    rope_parameters=_rope(partial_rotary_factor=0.5),
)
_add(
    "persimmon",
    hf.PersimmonConfig,
    Traits(rotary_size=8, qk_norm="before", key_value_heads=4, fused=True),
    rope_parameters=_rope(partial_rotary_factor=0.5),
    num_key_value_heads=...,
    head_dim=...,
)

# --- neighbouring channels rotated ------------------------------------------------------------
_add(
    "cohere",
    hf.CohereConfig,
    Traits(pairing="interleaved", qk_norm="before"),
    use_qk_norm=True,
    logit_scale=0.5,
)
_add("helium", hf.HeliumConfig, Traits(pairing="interleaved"))
_add("ernie4_5", hf.Ernie4_5Config, Traits(pairing="interleaved"), use_bias=True)
for _name, _class in (("glm", hf.GlmConfig), ("glm4", hf.Glm4Config)):
    _add(
        _name,
        _class,
        Traits(pairing="interleaved", rotary_size=8),
        rope_parameters=_rope(partial_rotary_factor=0.5),
    )

# --- layers that differ -----------------------------------------------------------------------
_add(
    "gemma2",
    hf.Gemma2Config,
    Traits(softcap=3.0, window=8, sliding_layers=(0, 1)),
    vanilla=EAGER_ONLY | {"note": "sdpa has no soft-capping"},
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
    attn_logit_softcapping=3.0,
    query_pre_attn_scalar=16,
)
_add(
    "gemma3_text",
    hf.Gemma3TextConfig,
    Traits(qk_norm="before", window=8, sliding_layers=(0, 1), rope_type="per layer"),
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
    query_pre_attn_scalar=16,
    rope_parameters={
        "sliding_attention": _rope(100.0),
        "full_attention": _rope(10_000.0, rope_type="linear", factor=4.0),
    },
)
_add(
    "olmo3",
    hf.Olmo3Config,
    Traits(qk_norm="before", window=8, sliding_layers=(0, 1), rope_type="per layer"),
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
    rope_parameters={
        "sliding_attention": _rope(),
        "full_attention": _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    },
)
_add(
    "gpt_oss",
    hf.GptOssConfig,
    Traits(sinks=True, window=8, sliding_layers=(0, 1), rope_type="yarn"),
    vanilla=EAGER_ONLY | {"note": "sdpa has no attention sinks"},
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
    num_local_experts=4,
    num_experts_per_tok=2,
    rope_parameters=_rope(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=128, truncate=False
    ),
)
_add(
    "smollm3",
    hf.SmolLM3Config,
    Traits(nope_layers=(1,)),
    no_rope_layers=[1, 0, 1],
    use_sliding_window=False,
)
_add(
    "cohere2",
    hf.Cohere2Config,
    Traits(pairing="interleaved", window=8, sliding_layers=(0, 1), nope_layers=(2,)),
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
    logit_scale=0.5,
)
_add(
    "exaone4",
    hf.Exaone4Config,
    Traits(qk_norm="before", window=8, sliding_layers=(0, 1), nope_layers=(2,)),
    layer_types=SLIDING_THEN_FULL,
    sliding_window=8,
)

# --- scaled frequencies -----------------------------------------------------------------------
_add(
    "llama_linear",
    hf.LlamaConfig,
    Traits(rope_type="linear"),
    rope_parameters=_rope(rope_type="linear", factor=4.0),
)
_add(
    "llama_yarn",
    hf.LlamaConfig,
    Traits(rope_type="yarn"),
    vanilla={"note": "cosines and sines are multiplied by an attention factor above one"},
    rope_parameters=_rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64),
)
_add(
    "llama3",
    hf.LlamaConfig,
    Traits(rope_type="llama3"),
    rope_parameters=_rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
)
LENGTH_CHANGES_FREQUENCIES: dict[str, Any] = {
    "note": "frequencies follow the longest row, so its length moves the others' logits, "
    "and cached keys keep the frequencies of their time",
}
_add(
    "llama_dynamic",
    hf.LlamaConfig,
    Traits(rope_type="dynamic"),
    vanilla=LENGTH_CHANGES_FREQUENCIES | {"stateful": True},
    max_position_embeddings=32,  # longer inputs change the frequencies
    rope_parameters=_rope(rope_type="dynamic", factor=4.0),
)
_add(
    "llama_longrope",
    hf.LlamaConfig,
    Traits(rope_type="longrope"),
    vanilla=LENGTH_CHANGES_FREQUENCIES,
    rope_parameters=_rope(
        rope_type="longrope",
        factor=16.0,
        short_factor=[1.0 + 0.1 * i for i in range(HEAD_SIZE // 2)],
        long_factor=[2.0 + 0.5 * i for i in range(HEAD_SIZE // 2)],
        original_max_position_embeddings=32,  # longer inputs change the frequencies
    ),
)

# --- families that need code of their own, or cannot be taken over ----------------------------
_add(
    "qwen3_next",
    hf.Qwen3NextConfig,
    Traits(qk_norm="before", rotary_size=8, linear_layers=(0, 1)),
    vanilla={"tolerance": 1e-3, "note": "padding moves the chunks of its linear attention"},
    layer_types=["linear_attention", "linear_attention", "full_attention"],
    rope_parameters=_rope(partial_rotary_factor=0.5),
    shared_expert_intermediate_size=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    **MOE,
)
_add(
    "deepseek_v3",
    hf.DeepseekV3Config,
    Traits(
        pairing="interleaved", rotary_size=8, head_size=24, key_value_heads=4, unsupported=LATENT
    ),
    num_key_value_heads=4,
    head_dim=...,
    kv_lora_rank=32,
    q_lora_rank=32,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=16,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
)
_add(
    "llama4_text",
    hf.Llama4TextConfig,
    Traits(pairing="interleaved", qk_norm="after", nope_layers=(2,), unsupported=COMPLEX),
    no_rope_layers=[1, 1, 0],
    attention_chunk_size=16,
    intermediate_size_mlp=96,
    num_local_experts=4,
    moe_layers=[1],
)
UNROTATED: dict[str, Any] = {"pairing": None, "rotary_size": 0, "key_value_heads": 4}
ALIBI = Traits(positions="alibi", fused=True, unsupported=NO_INTERFACE, **UNROTATED)
OLD_NAMES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "num_attention_heads", "num_hidden_layers"), ...),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "intermediate_size"), ...),
}
_add(
    "bloom",
    hf.BloomConfig,
    ALIBI,
    vanilla=EAGER_ONLY,
    **OLD_NAMES | {"hidden_size": 64},
    n_head=4,
    n_layer=3,
)
_add(
    "falcon_alibi",
    hf.FalconConfig,
    ALIBI,
    vanilla={"note": "its eager path adds the bias twice"},
    alibi=True,
    multi_query=False,
    head_dim=...,
)
_add(
    "falcon",
    hf.FalconConfig,
    Traits(key_value_heads=4, fused=True, unsupported=NO_INTERFACE),
    new_decoder_architecture=True,
    num_kv_heads=2,
    head_dim=...,
)
_add(
    "gptj",
    hf.GPTJConfig,
    Traits(pairing="interleaved", rotary_size=8, key_value_heads=4, unsupported=NO_INTERFACE),
    vanilla=EAGER_ONLY,
    **OLD_NAMES,
    max_position_embeddings=...,
    n_positions=512,
    n_embd=64,
    n_layer=3,
    n_head=4,
    rotary_dim=8,
)
LEARNED = Traits(positions="learned", unsupported=NO_ROTATION, **UNROTATED)
_add(
    "gpt2",
    hf.GPT2Config,
    replace(LEARNED, fused=True),
    **OLD_NAMES,
    max_position_embeddings=...,
    n_positions=512,
    n_embd=64,
    n_inner=96,
    n_layer=3,
    n_head=4,
)
_add("opt", hf.OPTConfig, LEARNED, ffn_dim=96, word_embed_proj_dim=64, head_dim=...)

SUPPORTED = tuple(name for name, family in FAMILIES.items() if not family.traits.unsupported)
