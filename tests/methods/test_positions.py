"""Ms-PoE, Self-Extend and rotary tables: what is beside the comparison with their twins."""

import pytest
import torch
from torch import Tensor

from rag_middle.attention import Rotation, model_traits
from rag_middle.errors import MethodConfigError, RagMiddleError
from rag_middle.methods import (
    METHODS,
    AttentionBuckets,
    Compose,
    MsPoE,
    PositionInterpolation,
    SelfExtend,
    layer_rotations,
)
from rag_middle.methods.ms_poe import attention
from rag_middle.methods.ms_poe.attention import position_awareness
from rag_middle.methods.self_extend import kernels
from rag_middle.methods.self_extend.kernels import TwoFold, attend, weights_of, weights_on
from rag_middle.ops.scores import ScoreRule
from tests.conftest import FamilyModel
from tests.contract.cases import LONG, SHORT
from tests.contract.running import (
    assert_rows_equal_prompts_alone,
    distance,
    generated_under,
    logits_under,
)
from tests.families import FAMILIES
from tests.methods.against_naive import TOLERANCE, assert_equal_to_naive
from tests.reference.self_extend import NaiveSelfExtend


def test_a_random_order_is_one_for_each_layer_and_always_the_same(
    family_model: FamilyModel,
) -> None:
    traits = model_traits(family_model("llama"))
    method = MsPoE(first_layer=0, head_order="random", reference_code=False)
    for layer in traits.layers.values():
        ratios = method.ratios(layer)
        assert ratios == method.ratios(layer)
        assert sorted(ratios) == pytest.approx([1.2, 1.8])
    with pytest.raises(MethodConfigError, match="authors' code has no head_order='random'"):
        MsPoE(head_order="random", reference_code=True)


@pytest.mark.parametrize("family", ["llama", "cohere", "hunyuan_v1_dense"])
def test_a_row_of_many_generates_as_it_does_alone(family: str, family_model: FamilyModel) -> None:
    """Of few rows the model rotates every head of a token by every table."""
    model, method, rows = family_model(family), MsPoE(first_layer=0), 65
    assert rows * model.config.num_attention_heads > attention._MOST_TABLES
    prompts = [(SHORT, LONG)[row % 2] for row in range(rows)]
    assert_rows_equal_prompts_alone(model, method, FAMILIES[family].tolerance, prompts)


def test_the_authors_code_divides_the_window_without_rounding(family_model: FamilyModel) -> None:
    assert_equal_to_naive(
        family_model("llama"),
        SelfExtend(group=4, window=7, reference_code=True),
        NaiveSelfExtend,
        group_size=4,
        window=7,
        divides_exactly=True,
    )
    # Only on LLaMA and Gemma; elsewhere, and where the group divides the window, nothing differs.
    for name, group, window in (("qwen3", 4, 7), ("llama", 2, 6)):
        model, logits = family_model(name), []
        for reference_code in (False, True):
            method = SelfExtend(group=group, window=window, reference_code=reference_code)
            logits.append(logits_under(model, method))
        assert torch.equal(*logits)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("key", [0, 3, 17, 23])
@pytest.mark.parametrize("limit", [None, 1, 4, 5, 6, 11, 40])
@pytest.mark.parametrize("rows", [1, 7, 24])
@pytest.mark.one_in(3)
def test_a_window_of_the_models_own_hides_what_is_beyond(
    rows: int, limit: int | None, key: int, softcap: float | None
) -> None:
    make, window, total, watch = torch.Generator().manual_seed(0), 5, 24, max(0, rows - 2)
    q = TwoFold(*torch.randn(2, 1, 4, rows, 8, generator=make))
    k = TwoFold(*torch.randn(2, 1, 2, total, 8, generator=make))
    v = torch.randn(1, 2, total, 8, generator=make)
    sinks = torch.randn(4, generator=make)
    distance = torch.arange(total - rows, total)[:, None] - torch.arange(total)
    hidden = (distance < 0) if limit is None else (distance < 0) | (distance >= limit)
    near, far = (x @ y.repeat_interleave(2, dim=1).mT for x, y in zip(q, k, strict=True))
    rule = ScoreRule(scale=0.3, window=limit, softcap=softcap)
    scores = rule.cap_(0.3 * torch.where(distance < window, near, far))
    scores = scores.masked_fill(hidden, -torch.inf)
    extra = sinks[None, :, None, None].expand(1, 4, rows, 1)
    weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
    out, lse = attend(q, k, v, window, rule, sinks=sinks)
    how = (q, k, lse, window, rule)
    read = (out, weights_on(key, *how), weights_of(watch, *how))
    expected = (weights @ v.repeat_interleave(2, dim=1), weights[..., key], weights[:, :, watch])
    for got, want in zip(read, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("alive", [1, 40, 700])
def test_scores_of_a_few_rows_and_heads_at_a_time(
    alive: int, family_model: FamilyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, method = family_model("gemma2"), SelfExtend(group=2, window=3)
    tokens, expected = generated_under(model, method, [SHORT, LONG])
    monkeypatch.setattr(kernels, "scores_at_once", lambda device: alive)
    again, logits = generated_under(model, method, [SHORT, LONG])
    assert torch.equal(again, tokens)
    assert distance(logits, expected) < TOLERANCE


TRAITS = model_traits(FAMILIES["llama"].build("sdpa"))


TABLES_ONLY = {"none", "lpes", "position_interpolation"}


def test_one_base_is_a_table_and_several_are_not() -> None:
    assert layer_rotations(AttentionBuckets(base_factors=(1.8,)), TRAITS) == dict.fromkeys(
        range(3), Rotation(base_factor=1.8)
    )
    with pytest.raises(MethodConfigError, match="several forward passes"):
        layer_rotations(AttentionBuckets(), TRAITS)


def test_parts_of_a_composition_rotate_layers_of_their_own() -> None:
    parts = [
        PositionInterpolation(scale=scale, layers=(layer,)) for layer, scale in ((0, 2), (2, 3))
    ]
    rotations = layer_rotations(Compose(methods=parts), TRAITS)
    assert rotations == {0: Rotation(scale=2), 2: Rotation(scale=3)}


@pytest.mark.parametrize("name", [*METHODS])
def test_every_method_is_tables_or_refused_with_the_reason(name: str) -> None:
    try:
        method = METHODS.get(name).example()
    except RagMiddleError:
        return  # a composition of nothing
    if name in TABLES_ONLY:
        layer_rotations(method, TRAITS)
        return
    with pytest.raises(MethodConfigError, match=f"{name} .* rotary tables say nothing of that"):
        layer_rotations(method, TRAITS)


# -- which heads mind positions --------------------------------------------------------------------


def test_a_token_at_exactly_the_threshold_counts_unless_strict() -> None:
    # Equal scores: every token has exactly the mean attention.
    query, key = torch.zeros(1, 2, 8), torch.ones(1, 2, 4, 8)
    for padding in (None, torch.tensor([0])):
        given = {"scale": 1.0, "threshold": 1.0, "padding": padding}
        assert position_awareness(query, key, **given).tolist() == [[1.0, 1.0]]
        assert position_awareness(query, key, **given, strict=True).tolist() == [[0.0, 0.0]]


def test_a_query_in_float32_is_not_rounded() -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, 8, 64, generator=generator)
    key = torch.randn(1, 1, 4096, 64, generator=generator)

    def awareness(query: Tensor) -> Tensor:
        attention = (query.double()[:, :, None] @ key.double().mT / 8).softmax(-1)[:, :, 0]
        return (attention >= 1 / 4096).double().mean(-1).float()

    assert not torch.equal(awareness(query), awareness(query.bfloat16()))  # it would show
    measured = position_awareness(query, key, scale=1 / 8, threshold=1.0)
    assert torch.equal(measured, awareness(query))
