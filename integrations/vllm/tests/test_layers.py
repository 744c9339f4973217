"""Layers of models made of vLLM's own modules: changed, each by its factor, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.utils import PPMissingLayer

from rag_middle.attention import Rotation
from rag_middle.errors import MethodConfigError, PatchIneffectiveError, UnsupportedArchitectureError
from rag_middle.methods import LPES, PositionInterpolation, method_from_profile
from rag_middle.profiles import ModelFacts, Profile
from rag_middle_vllm.layers import rotate_layers

pytestmark = pytest.mark.usefixtures("config")

SIZE, HEADS, KV_HEADS = 32, 4, 2
FACTORS = (1.0, 1.5, 2.0)


def layer(index: int, rotary: nn.Module | None, **options: Any) -> nn.Module:
    attention = nn.Module()
    if rotary is not None:
        attention.rotary_emb = rotary
    attention.attn = Attention(
        HEADS,
        SIZE,
        1.0,
        num_kv_heads=KV_HEADS,
        prefix=f"model.layers.{index}.self_attn.attn",
        **options,
    )
    whole = nn.Module()
    whole.self_attn = attention
    return whole


def decoder(layers: list[nn.Module]) -> nn.Module:
    model = nn.Module()
    model.model = nn.Module()
    model.model.layers = nn.ModuleList(layers)
    return model


def shared_rotary(**parameters: Any) -> Any:
    return get_rope(
        SIZE,
        128,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, **parameters},
        dtype=torch.float32,
    )


def llama(**options: Any) -> nn.Module:
    """Three layers, which share one rotary module, as vLLM's models do."""
    return decoder([layer(index, shared_rotary(), **options) for index in range(3)])


def rotate(model: nn.Module, method: Any, stage: tuple[int, int] = (0, 3)) -> dict[int, Rotation]:
    model_config = SimpleNamespace(
        hf_text_config=SimpleNamespace(
            model_type="llama",
            hidden_size=HEADS * SIZE,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
        ),
        use_mla=False,
        max_model_len=64,
        get_total_num_hidden_layers=lambda: 3,
        get_layers_start_end_indices=lambda _: stage,
        get_head_size=lambda: SIZE,
        using_transformers_backend=lambda: True,
    )
    vllm_config = SimpleNamespace(
        parallel_config=None, scheduler_config=SimpleNamespace(max_num_batched_tokens=32)
    )
    return rotate_layers(model, method, vllm_config, model_config)


def rotary_of(model: nn.Module, index: int) -> Any:
    return model.get_submodule(f"model.layers.{index}.self_attn.rotary_emb")


def test_every_layer_rotates_by_its_own_factor() -> None:
    model = llama()
    original = rotary_of(model, 0)
    assert rotate(model, LPES(factors=FACTORS)) == {
        1: Rotation(scale=1.5),
        2: Rotation(scale=2.0),
    }
    assert rotary_of(model, 0) is original  # a factor of 1
    torch.testing.assert_close(rotary_of(model, 2).cos_sin_cache[::2], original.cos_sin_cache[:32])
    assert len(rotary_of(model, 1).cos_sin_cache) == 64  # max_model_len, of 128
    assert shared_rotary() is original  # a draft model gets what it would have got


def test_layers_of_one_factor_share_a_table() -> None:
    model = llama()
    rotate(model, PositionInterpolation(scale=2))
    assert rotary_of(model, 0) is rotary_of(model, 1) is rotary_of(model, 2)


def test_a_pipeline_stage_changes_the_layers_that_it_has() -> None:
    model = decoder([PPMissingLayer(), layer(1, shared_rotary()), layer(2, shared_rotary())])
    assert rotate(model, LPES(factors=(3.0, 1.5, 2.0)), stage=(1, 3)).keys() == {1, 2}


def test_a_layer_that_says_it_has_no_rotary_module_is_left_out() -> None:
    model = decoder([layer(0, shared_rotary()), layer(1, None), layer(2, shared_rotary())])
    model.get_submodule("model.layers.1.self_attn").rotary_emb = None
    assert rotate(model, PositionInterpolation(scale=2)).keys() == {0, 2}
    with pytest.raises(MethodConfigError, match="None of the layers"):
        rotate(model, PositionInterpolation(scale=2, layers=(1,)))


def test_a_family_without_rotary_modules_of_vllm_is_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="Transformers backend"):
        rotate(decoder([layer(index, None) for index in range(3)]), LPES(factors=FACTORS))


def test_tables_that_cannot_be_had_are_refused() -> None:
    fourier = {"use_fope": True, "num_key_value_heads": 2, "num_inv_freq": 8}
    rotary = shared_rotary(**fourier, fope_sep_head=True, fope_init_factor=0.1)
    model = decoder([layer(index, rotary) for index in range(3)])
    with pytest.raises(UnsupportedArchitectureError, match="FourierRotaryEmbedding"):
        rotate(model, LPES(factors=FACTORS))


@pytest.mark.parametrize("kept", ["cos_sin_cache", "forward", "itself"])
def test_a_layer_that_keeps_the_old_table_is_found_out(kept: str) -> None:
    model = llama()
    old = rotary_of(model, 1)
    # In a list or not, it would go on rotating as before.
    holder: Any = model.get_submodule("model.layers.1.self_attn").attn.impl
    holder.remembered = old if kept == "itself" else getattr(old, kept)
    with pytest.raises(PatchIneffectiveError, match=r"attn\.remembered"):
        rotate(model, LPES(factors=FACTORS))


def test_a_rotary_module_outside_the_layers_is_refused() -> None:
    model = llama()
    model.model.rotary_emb = rotary_of(model, 0)
    with pytest.raises(UnsupportedArchitectureError, match="outside its layers"):
        rotate(model, PositionInterpolation(scale=2))


def test_layers_that_share_keys_need_one_factor() -> None:
    target = "model.layers.0.self_attn.attn"
    layers = [layer(0, shared_rotary()), layer(1, shared_rotary())]
    layers.append(layer(2, shared_rotary(), kv_sharing_target_layer_name=target))
    with pytest.raises(MethodConfigError, match="attends to the keys of layer 0"):
        rotate(decoder(layers), LPES(factors=FACTORS))
    assert len(rotate(decoder(layers), PositionInterpolation(scale=2))) == 3


def test_a_profile_of_another_shape_is_refused() -> None:
    facts = ModelFacts(id="other", model_type="llama", layers=3, hidden_size=64, heads=2)
    profile = Profile(method="lpes", options={"factors": FACTORS}, model=facts)
    with pytest.raises(MethodConfigError, match="hidden size 64, here 128; query heads 2"):
        rotate(llama(), method_from_profile(profile, "profile:p.json"))
