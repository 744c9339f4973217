"""Where a family cannot take a method, an error says why and what to use instead."""

import re
from dataclasses import replace

import pytest
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig, Gemma4ForCausalLM, Gemma4TextConfig

from rag_middle.attention import applied, model_traits
from rag_middle.errors import MethodConfigError, UnsupportedArchitectureError
from rag_middle.methods import METHODS, Method, MsPoE, PositionInterpolation
from tests.conftest import FamilyModel
from tests.contract.cases import ACTIVE, EXAMPLES, LONG, expected_refusal
from tests.contract.running import assert_refused
from tests.families import FAMILIES

REFUSED = [
    (family, method)
    for family in FAMILIES
    for method in ACTIVE
    if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is not None
]

#: A word of the message for every short reason.
SAID = {
    "own attention code": "attention interface",
    "no rotary positions": "rotary positions, and this model",
    "linear attention": "no softmax attention",
    "unknown rotation": "no pairing of head dimensions",
    "norm after rotation": "after the rotation",
    "chunks": "attend in chunks",
}


@pytest.mark.pairs(("family", "method"), REFUSED)
@pytest.mark.one_in(6)
def test_a_refusal_says_why_and_what_to_use_instead(
    family: str, method: str, family_model: FamilyModel
) -> None:
    model, traits = family_model(family), FAMILIES[family].traits
    with (
        pytest.raises(UnsupportedArchitectureError) as refusal,
        applied(model, ACTIVE[method], [LONG.tokens]),
    ):
        pass
    error = refusal.value
    reason = expected_refusal(ACTIVE[method], traits, family)
    assert reason is not None
    assert SAID[reason] in error.reason
    assert error.model_type == model.config.model_type
    assert error.reason.endswith(".")
    assert error.alternative.endswith(".")

    recommended = set(re.findall(r"\w+", error.alternative)) & set(METHODS) - {"none"}
    for name in recommended:
        example: Method = EXAMPLES[name].neutral
        assert expected_refusal(example, traits, family) is None, f"{name} is refused too"
    if any(
        expected_refusal(EXAMPLES[name].neutral, traits, family) is None
        for name in EXAMPLES
        if name not in ("none", "compose")
    ):
        assert recommended, "another method would work: name it"


@pytest.mark.parametrize(
    ("family", "layers", "method"),
    [
        ("qwen3_next", (0, 1), ACTIVE["positional_hidden_states"]),
        ("qwen3_next", (0, 1), ACTIVE["siw"]),
        ("qwen3_next", (0, 1), PositionInterpolation(scale=1.5)),
        ("qwen3_next", (0, 1), MsPoE()),
        ("smollm3", (1,), PositionInterpolation(scale=1.5)),
        ("smollm3", (1,), MsPoE()),
    ],
)
def test_layers_that_a_method_cannot_change_are_no_silent_no_op(
    family: str, layers: tuple[int, ...], method: Method, family_model: FamilyModel
) -> None:
    chosen = replace(method, layers=layers)  # type: ignore[call-arg]
    assert_refused(family_model(family), chosen, MethodConfigError, "layer")


def test_a_first_layer_behind_the_last_is_no_silent_no_op(family_model: FamilyModel) -> None:
    assert_refused(family_model("llama"), MsPoE(first_layer=3), MethodConfigError, "first_layer")


@pytest.mark.parametrize("kind", ["gemma3n", "gemma4"])
def test_layers_that_borrow_keys_and_values_are_refused(kind: str) -> None:
    """They get them rotated and cached as another layer's method has left them."""
    settings = {
        "vocab_size": 64, "vocab_size_per_layer_input": 64, "hidden_size": 32,
        "hidden_size_per_layer_input": 8, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    if kind == "gemma3n":
        model = Gemma3nForCausalLM(
            Gemma3nTextConfig(
                **settings, laurel_rank=4, altup_num_inputs=2, activation_sparsity_pattern=[0.0] * 4
            )
        )
    else:
        model = Gemma4ForCausalLM(Gemma4TextConfig(**settings, global_head_dim=16))
    for method in ACTIVE.values():
        assert_refused(
            model, method, UnsupportedArchitectureError, r"layers \[2, 3\].*prompt_repetition"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_traits_are_found_as_the_source_says(family: str, family_model: FamilyModel) -> None:
    model, known = family_model(family), FAMILIES[family].traits
    found = model_traits(model)
    assert found.model_type == model.config.model_type
    assert found.num_layers == model.config.num_hidden_layers
    assert found.hidden_size == 64
    if known.unsupported and "interface" in known.unsupported:
        assert "attention interface" in found.obstacle
        assert found.layers == {}
        assert found.rope_type is None
        return
    assert found.obstacle == ""
    assert tuple(found.layers) == tuple(
        layer for layer in range(found.num_layers) if layer not in known.linear_layers
    )
    assert found.mixed == bool(known.linear_layers)
    if known.positions != "rope":
        assert found.rope_type is None
    elif known.rope_type == "per layer":
        assert found.rope_type is not None
        assert found.rope_type.count("+") == 1
    else:
        assert found.rope_type == known.rope_type

    understood = known.unsupported is None and known.positions == "rope"
    for index, layer in found.layers.items():
        assert layer.layer == index
        assert layer.heads == 4
        assert layer.kv_heads == known.key_value_heads
        assert layer.head_size == known.head_size
        assert layer.softcap == known.softcap
        assert layer.sinks == known.sinks
        assert layer.sliding_window == (known.window if index in known.sliding_layers else None)
        rotates = known.positions == "rope" and index not in known.nope_layers
        assert layer.uses_rope == rotates
        if understood and rotates:
            assert layer.rotary is not None
            assert layer.rotary.pairing == known.pairing
            assert 2 * layer.rotary.pairs == known.rotary_size
        else:
            assert layer.rotary is None
        if understood:
            # A part that is not rotated cannot be joined with several rotations of the other.
            whole = known.rotary_size == known.head_size
            assert layer.rotates_by_table == (rotates and whole)
            assert bool(layer.norms_after_rope) == (known.qk_norm == "after" and rotates)
        if known.qk_norm == "before" or layer.norms_after_rope:
            assert not layer.affine_projections


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "cohere2", "gpt_neox", "hunyuan_v1_dense"])
def test_traits_do_not_depend_on_the_implementation(
    family: str, implementation: str, family_model: FamilyModel
) -> None:
    other = model_traits(family_model(family))
    assert model_traits(family_model(family, implementation)) == other


def test_the_scale_of_scores_is_the_models_own(family_model: FamilyModel) -> None:
    assert model_traits(family_model("llama")).layers[0].score_scale == 16**-0.5
    assert model_traits(family_model("granite")).layers[0].score_scale == 0.25
