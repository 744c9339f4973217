"""Plans are data: they merge where layers are asked different questions, and check themselves."""

import pytest

from rag_middle.attention import AttentionPlan
from rag_middle.errors import MethodConfigError
from rag_middle.layout import PromptLayout
from rag_middle.methods import SIW, PositionalHiddenStates
from rag_middle.methods.document_method import DocumentChange
from rag_middle.methods.scales import PositionScale

SCALE = PositionScale(scale=2.0)
HIDDEN = PositionalHiddenStates(channels=(1,))
WEIGHTS = DocumentChange(SIW(), ((0.5, 2.0),))


def test_plans_for_different_aspects_and_layers_merge_in_the_order_of_attention() -> None:
    first = AttentionPlan.uniform((0, 1), SCALE)
    second = AttentionPlan(layers={1: (WEIGHTS, HIDDEN), 2: (HIDDEN,)})
    expected = {0: (SCALE,), 1: (SCALE, HIDDEN, WEIGHTS), 2: (HIDDEN,)}
    assert first.merge(second).layers == second.merge(first).layers == expected
    # Neither is changed by it.
    assert sorted(first.layers) == [0, 1]
    assert sorted(second.layers) == [1, 2]
    assert AttentionPlan().merge(first).layers == first.layers


def test_a_document_method_says_if_gradients_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not WEIGHTS.has_gradients
    monkeypatch.setattr(SIW, "has_gradients", True)
    assert WEIGHTS.has_gradients


def test_factors_are_counted_against_documents() -> None:
    plan = AttentionPlan.uniform((0,), DocumentChange(SIW(), ((1.0, 2.0), (1.0, 2.0))))
    two, one = PromptLayout(9, ((1, 4), (4, 8))), PromptLayout(9, ((1, 4),))
    plan.check(1, (two, two))
    with pytest.raises(MethodConfigError, match="Example 1 has 1 documents but 2 numbers"):
        plan.check(1, (two, one))
    with pytest.raises(MethodConfigError, match=r"Layers \[3, 5\] do not exist.* layers 0 to 2"):
        AttentionPlan.uniform((0, 3, 5), SCALE).check(3, (one,))
