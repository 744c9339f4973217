"""Projections that change between prompts of a block, or differ between rows of a batch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rag_middle.attention import applied, model_traits
from rag_middle.methods import PositionalHiddenStates
from tests.adapters import Wrapper, adapted_llama
from tests.contract.cases import LONG, SHORT
from tests.contract.running import distance, generated, left_padded, logits_under, prompt_logits

METHODS = [
    PositionalHiddenStates(channels=(3,), factor=-1),
    PositionalHiddenStates(
        channels=(3, 40), factor=0, last_tokens=3, scale_values=True, skip_first=2
    ),
]
TOLERANCE = 1e-4  # float32 sums in another order
FACTORS = (1.0, -2.0)


class _ByRow(Wrapper):
    """As PEFT runs batches of several adapters: each row's projection is told which is its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        factors = torch.tensor(FACTORS[: len(kwargs["input_ids"])])[:, None, None]

        def of_rows(_module: nn.Module, inputs: tuple[Tensor], options: Any) -> tuple[Any, Any]:
            if len(inputs[0]) != len(factors):
                raise ValueError("one adapter per row")
            return (inputs[0] * factors,), options

        layer = self.base.model.layers[1].self_attn.q_proj  # type: ignore[union-attr]
        with layer.register_forward_pre_hook(of_rows, with_kwargs=True):
            return self.base(*args, **kwargs)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_adapters_may_be_switched_between_prompts_of_a_block(
    method: PositionalHiddenStates,
) -> None:
    model, layer = adapted_llama()
    expected = {}
    for name in ("a", "b"):
        layer._active_adapter = [name]
        expected[name] = logits_under(model, method)
    with torch.no_grad(), applied(model, method, [LONG.tokens]):
        for name in ("a", "b", "a"):
            layer._active_adapter = [name]
            assert distance(prompt_logits(model, LONG), expected[name]) < TOLERANCE
            generated(model, [LONG])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_rows_may_have_projections_of_their_own(method: PositionalHiddenStates) -> None:
    model, layer = adapted_llama()
    layer._disable_adapters = True
    wrapped: Any = _ByRow(model)
    assert model_traits(wrapped) == model_traits(model)
    ids, mask = left_padded([LONG, SHORT])
    with torch.no_grad(), applied(wrapped, method, [LONG.tokens, SHORT.tokens]):
        together = wrapped(input_ids=ids, attention_mask=mask).logits
    for row, (prompt, factor) in enumerate(zip((LONG, SHORT), FACTORS, strict=True)):
        weight = layer.base_layer.weight
        weight.mul_(factor)
        try:
            alone = logits_under(model, method, prompt)
        finally:
            weight.div_(factor)
        assert distance(together[row, -len(alone) :], alone) < TOLERANCE
