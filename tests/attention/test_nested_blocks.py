"""Blocks inside blocks: what a thread asked for last holds, for the model that it named."""

from typing import Any

import pytest
import torch

from rag_middle.attention import applied
from rag_middle.errors import MethodConfigError
from rag_middle.methods import LPES, PINE, Method, NoMethod, PositionInterpolation
from tests.conftest import FamilyModel
from tests.contract.cases import LONG
from tests.contract.running import assert_refused, logits_under, prompt_logits

OUTER = pytest.mark.parametrize(
    "outer", [PINE(), PositionInterpolation(scale=1.5)], ids=lambda m: m.name
)


@OUTER
def test_none_inside_a_block_is_the_unmodified_model(outer: Method, llama: Any) -> None:
    plain, changed = prompt_logits(llama, LONG), logits_under(llama, outer)
    with applied(llama, outer, [LONG.tokens]):
        assert torch.equal(logits_under(llama, NoMethod()), plain)
        assert torch.equal(prompt_logits(llama, LONG), changed)


@OUTER
@pytest.mark.parametrize("inner", [LPES(factors=1.5), NoMethod()], ids=lambda m: m.name)
def test_blocks_of_different_models_hold_at_the_same_time(
    outer: Method, inner: Method, family_model: FamilyModel
) -> None:
    first, second = family_model("llama"), family_model("qwen3")
    expected, expected_second = logits_under(first, outer), logits_under(second, inner)
    with applied(first, outer, [LONG.tokens]), applied(second, inner, [LONG.tokens]):
        assert torch.equal(prompt_logits(first, LONG), expected)
        assert torch.equal(prompt_logits(second, LONG), expected_second)


def test_a_second_method_on_the_same_model_is_refused(llama: Any) -> None:
    with applied(llama, PINE(), [LONG.tokens]):
        prompt_logits(llama, LONG)
        assert_refused(llama, LPES(factors=1.5), MethodConfigError, "Compose")
