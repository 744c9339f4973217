"""Which methods are rotary tables and nothing else, and what tables."""

from __future__ import annotations

import pytest

from rag_middle.attention import AttentionPlan, Rotation, model_traits
from rag_middle.errors import MethodConfigError, RagMiddleError
from rag_middle.methods import (
    LPES,
    METHODS,
    AttentionBuckets,
    Compose,
    NoMethod,
    PositionInterpolation,
    layer_rotations,
    resolve_method,
)
from tests.families import FAMILIES
from tests.reader import READER_LPES

TRAITS = model_traits(FAMILIES["llama"].build("sdpa"))
TABLES_ONLY = {"none", "lpes", "position_interpolation"}


def test_lpes_rotates_each_layer_by_its_factor() -> None:
    rotations = layer_rotations(LPES(factors=(1.0, 1.5, 2.0)), TRAITS)
    assert rotations == {0: Rotation(), 1: Rotation(scale=1.5), 2: Rotation(scale=2.0)}


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


def test_the_unmodified_model_has_no_rotations() -> None:
    assert layer_rotations(NoMethod(), TRAITS) == {}


def test_a_method_that_plans_nothing_is_refused() -> None:
    class Idle(PositionInterpolation):
        def plan(self, *_: object) -> AttentionPlan:
            return AttentionPlan()

    with pytest.raises(MethodConfigError, match="changes no layer"):
        layer_rotations(Idle(scale=2), TRAITS)


def test_a_profile_of_another_shape_is_refused() -> None:
    with pytest.raises(MethodConfigError, match="decoder layers 4, here 3"):
        layer_rotations(resolve_method(READER_LPES), TRAITS)
