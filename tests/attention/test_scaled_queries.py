"""Queries that a model scales by where their tokens stand: that is where the method puts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers as hf
from transformers import PreTrainedModel

from rag_middle.attention import applied, model_traits
from rag_middle.methods import PINE, Method, PositionalHiddenStates
from tests.contract.cases import EXAMPLES, LONG
from tests.contract.running import distance, prompt_logits
from tests.families import FAMILIES
from tests.tiny_models import build, tiny

pytestmark = pytest.mark.skipif(
    not hasattr(hf, "Ministral3Config"), reason="this version of transformers has no such model"
)


def _ministral(original: int = 4, beta: float = 0.5) -> PreTrainedModel:
    """Queries grow every few positions, as in released models every 16384."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": original,
        "llama_4_scaling_beta": beta,
    }
    return build("ministral3", tiny(hf.Ministral3Config, rope_parameters=rope), "sdpa")


def test_scaled_queries_are_found() -> None:
    for model, scaled in ((_ministral(), True), (FAMILIES["llama"].build(), False)):
        layers = model_traits(model).layers.values()
        assert {layer.scales_by_position for layer in layers} == {scaled}


@pytest.mark.parametrize(
    ("method", "order"),
    [
        *((EXAMPLES[name].neutral, (2, 0, 1)) for name in ("parallel_context_windows", "ape")),
        (EXAMPLES["structured_prompting"].neutral, (2, 0, 1)),
        (EXAMPLES["set_based_prompting"].neutral, (2, 0, 1)),
        (PINE(), (2, 0, 1)),
    ],
    ids=str,
)
def test_document_order_changes_nothing(method: Method, order: tuple[int, ...]) -> None:
    model = _ministral()
    prompts = (LONG, LONG.permuted(order))
    logits, suffix = [], LONG.layout.suffix_start
    for prompt in prompts:
        with applied(model, method, [prompt.tokens]):
            logits.append(prompt_logits(model, prompt))
    assert distance(logits[0][suffix:], logits[1][suffix:]) < 1e-4


def test_a_scale_that_scales_nothing_is_taken() -> None:
    model = _ministral(beta=0.0)
    method = PositionalHiddenStates(channels=(3,), factor=1.0, layers=(1, 2))
    plain = prompt_logits(model, LONG)
    with applied(model, method, [LONG.tokens]):
        assert distance(prompt_logits(model, LONG), plain) < 1e-4
    logits = []
    for beta in (0.0, 1e-6):
        model = _ministral(beta=beta)
        with applied(model, replace(method, factor=-1.0), [LONG.tokens]):
            logits.append(prompt_logits(model, LONG))
    assert distance(*logits) < 1e-3
    assert distance(logits[0], plain) > 0.1
