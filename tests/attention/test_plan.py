"""Plans are data: they merge where layers are asked different questions, and check themselves."""

from __future__ import annotations

import pytest

from rag_middle.attention import (
    AttentionPlan,
    ChannelScaling,
    DocumentOrder,
    InitialTokenScaling,
    LayerPlan,
    PositionScale,
)
from rag_middle.errors import IncompatibleMethodsError, MethodConfigError
from rag_middle.layout import PromptLayout

SCALE = PositionScale(scale=2.0)
HIDDEN = ChannelScaling(channels=(1,), factor=0.0)
WEIGHTS = InitialTokenScaling(factors=((0.5, 2.0),))
ORDER = DocumentOrder()


@pytest.mark.parametrize(
    ("plan", "claims"),
    [
        (LayerPlan(), set()),
        (LayerPlan(positions=SCALE), {"positions"}),
        (LayerPlan(hidden=HIDDEN, weights=WEIGHTS), {"hidden", "weights"}),
        (LayerPlan(documents=ORDER), {"documents", "positions", "hidden", "weights"}),
    ],
)
def test_what_a_plan_decides(plan: LayerPlan, claims: set[str]) -> None:
    assert plan.claims() == claims


def test_plans_for_different_questions_and_layers_merge() -> None:
    first = AttentionPlan.uniform((0, 1), LayerPlan(positions=SCALE))
    second = AttentionPlan.by_layer(
        range(1, 3), lambda layer: LayerPlan(weights=WEIGHTS if layer == 1 else None, hidden=HIDDEN)
    )
    expected = {
        0: LayerPlan(positions=SCALE),
        1: LayerPlan(positions=SCALE, hidden=HIDDEN, weights=WEIGHTS),
        2: LayerPlan(hidden=HIDDEN),
    }
    assert first.merge(second).layers == second.merge(first).layers == expected
    # Neither is changed by it.
    assert sorted(first.layers) == [0, 1]
    assert sorted(second.layers) == [1, 2]
    assert AttentionPlan().merge(first).layers == first.layers


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        (LayerPlan(positions=SCALE), LayerPlan(positions=SCALE), "positions of layer 4"),
        (LayerPlan(positions=SCALE), LayerPlan(documents=ORDER), "positions of layer 4"),
        (
            LayerPlan(hidden=HIDDEN, weights=WEIGHTS),
            LayerPlan(hidden=HIDDEN, weights=WEIGHTS),
            "hidden and weights of layer 4",
        ),
    ],
)
def test_one_question_has_one_answer_per_layer(
    first: LayerPlan, second: LayerPlan, clash: str
) -> None:
    plans = AttentionPlan(layers={4: first}), AttentionPlan(layers={4: second})
    for ours, theirs in (plans, plans[::-1]):
        with pytest.raises(IncompatibleMethodsError, match=clash):
            ours.merge(theirs)


def test_layers_beyond_the_model_are_refused() -> None:
    plan = AttentionPlan.uniform((0, 3, 5), LayerPlan(positions=SCALE))
    plan.check(6, (PromptLayout(3),))
    with pytest.raises(MethodConfigError, match=r"Layers \[3, 5\] do not exist.* layers 0 to 2"):
        plan.check(3, (PromptLayout(3),))


def test_factors_are_counted_against_documents() -> None:
    plan = AttentionPlan.uniform(
        (0,), LayerPlan(weights=InitialTokenScaling(factors=((1.0, 2.0), (1.0, 2.0))))
    )
    two, one = PromptLayout(9, ((1, 4), (4, 8))), PromptLayout(9, ((1, 4),))
    plan.check(1, (two, two))
    with pytest.raises(MethodConfigError, match="Example 1 has 1 documents but 2 factors"):
        plan.check(1, (two, one))
